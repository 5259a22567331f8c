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

    /// What was cut off a namespace, and what to do about it; `None` when nothing was.
    pub(crate) fn shrunk(&self, nsid: u32) -> Option<String> {
        let namespace = self.namespace(nsid).filter(|n| n.unusable.is_none())?;
        let (bytes, had_bytes) = (namespace.size_bytes(), self.host.largest_seen(nsid)?);
        (bytes < had_bytes).then(|| {
            format!(
                "namespace {nsid} was cut from {had_bytes} to {bytes} bytes on the target: I/O behind that fails. Have it made \
                 as long as it was there, then check or restore what is on it, or unmount, detach and attach it anew"
            )
        })
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
        let texts: Vec<_> = [self.refusal(nsid), self.shrunk(nsid), unknown, lost]
            .into_iter()
            .flatten()
            .collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }
}
