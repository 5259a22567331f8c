//! What a person has to know of a namespace that is in use.

use super::engine::Engine;

impl Engine {
    /// Why all I/O to a namespace that was there is refused, with what to do; `None` when it is
    /// not.
    pub(crate) fn refusal(&self, nsid: u32) -> Option<String> {
        let text = match self.namespace(nsid) {
            Some(namespace) => namespace.unusable.as_ref()?.to_error(nsid).to_string(),
            None if self.host.has_seen(nsid) => format!(
                "namespace {nsid} is gone from the controller; put it back on the target, or unmount and detach"
            ),
            None => return None,
        };
        Some(format!("refused: {text}"))
    }

    /// What is wrong with a namespace though its controller is live, with what to do; `None` when
    /// nothing is.
    pub(crate) fn attention(&self, nsid: u32) -> Option<String> {
        let ranges = self.unknown_ranges(nsid);
        let unknown = (ranges > 0).then(|| {
            format!(
                "writes to namespace {nsid} were never answered: those of the same blocks ({ranges} ranges, see \
                 the log) are refused until it is attached anew"
            )
        });
        let lost = self.unflushed.has_ever_lost(nsid).then(|| {
            format!(
                "acknowledged writes to namespace {nsid} may be lost, as the target's machine was started anew before \
                 they were flushed: check what is there, then attach it anew"
            )
        });
        let texts: Vec<_> = [self.refusal(nsid), unknown, lost]
            .into_iter()
            .flatten()
            .collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}
