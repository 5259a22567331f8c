//! What a host may do with a namespace right now: the part of the answer which the control half
//! changes while commands run, so that it takes effect at once and without a message.

use core::sync::atomic::{AtomicU32, Ordering};

use capstan_nvme_proto::status::Status;

/// One per controller and namespace, on its own cache lines: I/O queues read it for each command.
#[derive(Default, Debug)]
#[repr(align(128))]
pub(crate) struct Gate(AtomicU32);

/// Reasons to refuse a command. Several may hold; the order of [`Gate::check`] decides.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Closed(u32);

impl Closed {
    /// ANA state Inaccessible.
    pub(crate) const INACCESSIBLE: Self = Self(1 << 0);
    /// ANA state Persistent Loss.
    pub(crate) const PERSISTENT_LOSS: Self = Self(1 << 1);
    /// ANA state Change.
    pub(crate) const TRANSITION: Self = Self(1 << 2);
    /// Another host's reservation keeps this host from reading.
    pub(crate) const RESERVED_FOR_READ: Self = Self(1 << 3);
    /// Another host's reservation keeps this host from writing.
    pub(crate) const RESERVED_FOR_WRITE: Self = Self(1 << 4);
    /// Namespace Write Protection is on.
    pub(crate) const WRITE_PROTECTED: Self = Self(1 << 5);
    /// The host has seen another namespace under this NSID go, and has not identified this one.
    pub(crate) const GONE: Self = Self(1 << 6);
    /// Hosts have seen another namespace under this NSID, and this association has not identified
    /// this one.
    pub(crate) const UNIDENTIFIED: Self = Self(1 << 7);
    /// The host waits as long as the status of that says.
    pub(crate) const UNIDENTIFIED_WAITS: Self = Self(1 << 8);

    /// Whether this holds the reason `other`.
    pub(crate) const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) const fn with(self, other: Self, on: bool) -> Self {
        Self(self.0 & !other.0 | if on { other.0 } else { 0 })
    }
}

/// What a command does to the medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    /// Copy.
    ReadAndWrite,
    /// Flush and hints, which are write commands that change no block: a write protected namespace
    /// allows them, a reservation does not.
    WriteNothing,
    /// Allowed whatever the reservation.
    Neither,
}

impl Access {
    /// Whether blocks may hold something else afterwards.
    pub(crate) const fn changes_blocks(self) -> bool {
        matches!(self, Self::Write | Self::ReadAndWrite)
    }
}

impl Gate {
    pub(crate) fn set(&self, closed: Closed) {
        self.0.store(closed.0, Ordering::Release);
    }

    pub(crate) fn closed(&self) -> Closed {
        Closed(self.0.load(Ordering::Acquire))
    }

    /// The status that refuses what is meant for another namespace than this one, or may be.
    pub(crate) fn check_identified(&self) -> Result<(), Status> {
        let closed = self.closed();
        if closed.has(Closed::GONE) {
            // For the namespace that the host means, which is gone.
            Err(Status::INVALID_NAMESPACE_OR_FORMAT.dnr())
        } else if closed.has(Closed::UNIDENTIFIED_WAITS) {
            // For the namespace that the host means, which may be this one.
            // Sent again, it comes behind the look of a host at what there is.
            Err(Status::NAMESPACE_NOT_READY.with_crd(1))
        } else if closed.has(Closed::UNIDENTIFIED) {
            Err(Status::NAMESPACE_NOT_READY)
        } else {
            Ok(())
        }
    }

    /// The status that refuses `access`, if anything does. Path statuses carry no Do Not Retry:
    /// another path, or a later time, may succeed. NVMe Base 2.1, sections 8.1.1.7 (ANA), 8.1.22
    /// (reservations) and 8.1.16 (write protection).
    pub(crate) fn check(&self, access: Access) -> Result<(), Status> {
        let closed = self.closed();
        if closed == Closed::default() {
            return Ok(());
        }
        let reserved = match access {
            Access::Read => Closed::RESERVED_FOR_READ,
            Access::Write | Access::WriteNothing => Closed::RESERVED_FOR_WRITE,
            Access::ReadAndWrite => {
                Closed::RESERVED_FOR_WRITE.with(Closed::RESERVED_FOR_READ, true)
            }
            Access::Neither => Closed::default(),
        };
        let protected = if access.changes_blocks() {
            Closed::WRITE_PROTECTED
        } else {
            Closed::default()
        };
        self.check_identified()?;
        let refusals = [
            (
                Closed::PERSISTENT_LOSS,
                Status::ASYMMETRIC_ACCESS_PERSISTENT_LOSS,
            ),
            (Closed::INACCESSIBLE, Status::ASYMMETRIC_ACCESS_INACCESSIBLE),
            (Closed::TRANSITION, Status::ASYMMETRIC_ACCESS_TRANSITION),
            (reserved, Status::RESERVATION_CONFLICT.dnr()),
            (protected, Status::NAMESPACE_IS_WRITE_PROTECTED.dnr()),
        ];
        match refusals.iter().find(|(bit, _)| closed.0 & bit.0 != 0) {
            Some((_, status)) => Err(*status),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_refuses_what_it_should() {
        let cases = [
            (Closed::GONE, [true, true, true, true, true]),
            (Closed::UNIDENTIFIED, [true, true, true, true, true]),
            (Closed::INACCESSIBLE, [true, true, true, true, true]),
            (Closed::PERSISTENT_LOSS, [true, true, true, true, true]),
            (Closed::TRANSITION, [true, true, true, true, true]),
            (Closed::RESERVED_FOR_READ, [true, false, true, false, false]),
            (Closed::RESERVED_FOR_WRITE, [false, true, true, true, false]),
            (Closed::WRITE_PROTECTED, [false, true, true, false, false]),
            (Closed::default(), [false, false, false, false, false]),
        ];
        let gate = Gate::default();
        for (closed, refused) in cases {
            gate.set(closed);
            let answers = [
                Access::Read,
                Access::Write,
                Access::ReadAndWrite,
                Access::WriteNothing,
                Access::Neither,
            ]
            .map(|access| gate.check(access).is_err());
            assert_eq!(answers, refused, "{closed:?}");
        }
    }

    #[test]
    fn path_errors_come_first_and_may_be_retried() {
        let gate = Gate::default();
        gate.set(Closed::INACCESSIBLE.with(Closed::WRITE_PROTECTED, true));
        let status = gate.check(Access::Write).unwrap_err();
        assert_eq!(status, Status::ASYMMETRIC_ACCESS_INACCESSIBLE);
        gate.set(gate.closed().with(Closed::INACCESSIBLE, false));
        let status = gate.check(Access::Write).unwrap_err();
        assert_eq!(status, Status::NAMESPACE_IS_WRITE_PROTECTED.dnr());
    }
}
