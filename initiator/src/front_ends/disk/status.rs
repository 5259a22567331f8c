//! How a volume is, of what its association says.

use super::control::State;
use crate::controller::Snapshot;
use crate::error::ConnectError;
use crate::host::AssociationStatus;
use crate::wire::WireFields;

pub(super) fn state(now: &Snapshot, nsid: u32) -> State {
    let (state, attempt) = match &now.status {
        AssociationStatus::Live => ("live", None),
        AssociationStatus::Connecting { attempt, .. }
        | AssociationStatus::Waiting { attempt, .. } => ("reconnecting", Some(*attempt)),
        AssociationStatus::Resetting => ("reconnecting", None),
        AssociationStatus::Failed(_) => ("lost", None),
        AssociationStatus::ShuttingDown | AssociationStatus::Closed => ("closing", None),
    };
    let of_it = |texts: &[(u32, String)]| {
        let found = texts.iter().find(|(of, _)| *of == nsid);
        found.map(|(_, text)| text.clone())
    };
    let of_namespace = of_it(&now.attention);
    let detail = match &of_namespace {
        Some(text) => format!("{}; {text}", now.status),
        None => now.status.to_string(),
    };
    let attention = of_namespace.or_else(|| refusal(&now.status));
    let refused = of_it(&now.refused);
    // The controller is there, and the volume is not.
    let state = match state {
        "live" if refused.is_some() => "refused",
        state => state,
    };
    State {
        state: state.to_owned(),
        attempt,
        detail,
        held: now.held.map(|held| held.to_string()),
        attention,
        medium: None,
        refused,
        scanning: now.scanning,
        silent_ms: None,
        wire: Box::new(WireFields::of(now.wire.as_ref())),
    }
}

/// That the target does not want this host, which no attempt changes by itself: a target that is
/// there, and says so.
fn refusal(status: &AssociationStatus) -> Option<String> {
    let (AssociationStatus::Connecting {
        cause: Some(cause), ..
    }
    | AssociationStatus::Waiting { cause, .. }) = status
    else {
        return None;
    };
    let is_refusal = matches!(
        **cause,
        ConnectError::Refused { .. }
            | ConnectError::Rejected {
                by_target: true,
                ..
            }
    );
    is_refusal.then(|| format!("the target does not take it back, and its I/O waits: {status}"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{AssociationStatus, ConnectError, refusal};

    /// Most outages over RDMA are told by the machine of the target, on which nothing listens.
    #[test]
    fn only_a_target_that_is_there_refuses_and_says_until_when_io_waits() {
        let of = |by_target| {
            let cause = ConnectError::Rejected {
                qid: 0,
                reason: "a reason".to_owned(),
                next: "a step".to_owned(),
                by_target,
            };
            refusal(&AssociationStatus::Waiting {
                attempt: 3,
                next_in_ms: 400,
                fails_in_ms: Some(17_000),
                cause: Arc::new(cause),
            })
        };
        assert_eq!(of(false), None);
        let told = of(true).expect("it is refused");
        for words in [
            "does not take it back",
            "I/O fails in 17 s",
            "a reason",
            "a step",
        ] {
            assert!(told.contains(words), "{words}: {told}");
        }
        assert_eq!(refusal(&AssociationStatus::Live), None);
    }
}
