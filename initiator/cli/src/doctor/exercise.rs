//! Every RDMA opcode that reading and comparing use. Nothing is written.

use capstan_doctor::Check;
use capstan_initiator::NamespaceInfo;
use capstan_initiator::error::IoError;
use capstan_initiator::internals::way::Way;
use capstan_initiator::{DirectQueue, Io, Op, WindowsClosed};
use capstan_memory::Buffer;
use capstan_nvme_proto::status::Status;

use super::super::output;

/// The larger read, in bytes: too much for a capsule.
const LARGE_BYTES: u32 = 128 << 10;
/// How often what was read is compared, as another host may write between the two.
const COMPARISONS: usize = 3;
const LOG: &str = "see the target's log: journalctl -u capstan-target";

/// The namespace `nsid`, or the first that can be read where none is named.
///
/// # Errors
/// There is none; without a name, the first that there could be is said not to be there.
pub(super) fn namespace_to_read(
    queue: &DirectQueue,
    nsid: Option<u32>,
) -> Result<NamespaceInfo, IoError> {
    let mut readable = queue.namespaces().iter().filter(|n| n.unusable.is_none());
    let first = readable.next().map(|namespace| namespace.nsid);
    queue.namespace(nsid.or(first).unwrap_or(1)).cloned()
}

/// That there is none.
pub(super) fn nothing_to_read(error: &IoError, way: &Way) -> Check {
    let mend = format!("capstan list-ns {way}; give one that it shows with -N");
    let expected = "one that can be read";
    Check::error("namespace", error.to_string(), expected, mend)
}

/// Reads, compares and verifies the first LBAs of a namespace, and ends the association. `false`
/// when it cannot be read.
pub(super) fn exercise(
    mut queue: DirectQueue,
    namespace: &NamespaceInfo,
    checks: &mut Vec<Check>,
) -> bool {
    let size = output::size(namespace.size_bytes());
    let (nsid, lba_bytes) = (namespace.nsid, namespace.lba_bytes);
    let seen = format!("{nsid}: {size}, LBAs of {lba_bytes} bytes");
    checks.push(Check::ok("namespace", seen));
    let mut patient = Patient {
        namespace,
        queue: &mut queue,
        closed_before: WindowsClosed::default(),
    };
    let is_readable = patient.opcodes(checks);
    queue.close();
    is_readable
}

/// A namespace that is looked at.
struct Patient<'a> {
    namespace: &'a NamespaceInfo,
    queue: &'a mut DirectQueue,
    closed_before: WindowsClosed,
}

impl Patient<'_> {
    fn opcodes(&mut self, checks: &mut Vec<Check>) -> bool {
        self.closed_before = self.queue.windows_closed();
        let read = self.read();
        let is_readable = read.verdict == capstan_doctor::Verdict::Ok;
        checks.push(read);
        if !is_readable {
            return false;
        }
        checks.push(self.pull());
        checks.push(self.in_capsule());
        checks.extend(self.invalidate());
        checks.push(self.without_data());
        checks.push(Check::ok(
            "not tried",
            "Write, Write Zeroes and Dataset Management, as they change the namespace; reservations",
        ));
        true
    }

    /// LBAs of about `bytes`, as many as there are.
    fn blocks(&self, bytes: u32) -> u32 {
        let bytes = bytes.min(self.queue.transfer_bytes_max());
        let nlb = (bytes / self.namespace.lba_bytes).max(1);
        u32::try_from(self.namespace.nsze_lbas).map_or(nlb, |all| nlb.min(all))
    }

    /// One operation on the first LBAs, waited for.
    fn run(&mut self, op: Op, buffer: Option<Buffer>) -> (Result<(), String>, Option<Buffer>) {
        let io = Io {
            nsid: self.namespace.nsid,
            op,
        };
        if let Err(refused) = self.queue.submit(0, io, buffer) {
            return (Err(refused.reason.to_string()), refused.buffer);
        }
        match self.queue.wait(None) {
            Some(done) => {
                let result = done.result.map_err(|error| match error {
                    IoError::Status { status, .. } if status.code() == Status::COMPARE_FAILURE => {
                        DIFFERS.to_owned()
                    }
                    other => other.to_string(),
                });
                (result, done.buffer)
            }
            None => (Err("nothing came back".to_owned()), None),
        }
    }

    fn take(&self, nlb: u32) -> Result<Buffer, String> {
        let bytes = nlb * self.namespace.lba_bytes;
        let buffer = self.queue.take(bytes);
        buffer.ok_or_else(|| format!("no registered memory of {bytes} bytes is free"))
    }

    /// The capsule comes by SEND, the data by RDMA WRITE, the response by SEND.
    fn read(&mut self) -> Check {
        let name = self.name("SEND, RDMA WRITE", "C2HData");
        let mut told = Vec::new();
        for bytes in [self.namespace.lba_bytes, LARGE_BYTES] {
            let nlb = self.blocks(bytes);
            let result = self
                .take(nlb)
                .and_then(|buffer| self.run(Op::Read { slba: 0, nlb }, Some(buffer)).0);
            let bytes = u64::from(nlb) * u64::from(self.namespace.lba_bytes);
            if let Err(error) = result {
                let seen = format!("Read of {}: {error}", output::size(bytes));
                return Check::error(name, seen, "success", LOG);
            }
            told.push(output::size(bytes));
        }
        Check::ok(name, format!("Read of {}", told.join(" and of ")))
    }

    /// Data too large for a capsule is pulled by RDMA READ.
    fn pull(&mut self) -> Check {
        let name = self.name("RDMA READ", "H2CData");
        let nlb = self.blocks(LARGE_BYTES);
        let bytes = nlb * self.namespace.lba_bytes;
        // Connect has brought its data this way already.
        if !self.queue.controller().compare {
            return Check::ok(
                name,
                "1024 bytes, by Connect; more was not tried, as the controller has no Compare",
            );
        }
        if bytes <= self.queue.controller().in_capsule_bytes {
            return Check::ok(
                name,
                "1024 bytes, by Connect; more was not tried, as the namespace fits into a capsule",
            );
        }
        self.compare(name, nlb)
    }

    fn in_capsule(&mut self) -> Check {
        let name = self.name("SEND with data", "capsule with data");
        let in_capsule_bytes = self.queue.controller().in_capsule_bytes;
        let lba_bytes = self.namespace.lba_bytes;
        if !self.queue.controller().compare {
            return Check::ok(name, "not tried: the controller has no Compare");
        }
        if in_capsule_bytes < lba_bytes {
            let room = output::size(in_capsule_bytes.into());
            return Check::ok(name, format!("not tried: a capsule has room for {room}"));
        }
        self.compare(name, self.blocks(in_capsule_bytes))
    }

    /// Reads, and lets the controller compare: what travelled there and back is what it has.
    fn compare(&mut self, name: &str, nlb: u32) -> Check {
        let bytes = u64::from(nlb) * u64::from(self.namespace.lba_bytes);
        let size = output::size(bytes);
        let mut result = Ok(());
        for _ in 0..COMPARISONS {
            result = self.read_and_compare(nlb);
            if result.as_ref().err().map(String::as_str) != Some(DIFFERS) {
                break;
            }
        }
        match result {
            Ok(()) => Check::ok(name, format!("Compare of {size} with what was read")),
            Err(error) if error == DIFFERS => Check::error(
                name,
                format!("Compare of {size}: {DIFFERS}, {COMPARISONS} times in a row"),
                "the data that was read a moment before",
                "look for another host that writes these LBAs; without one, data is damaged on the \
                 way",
            ),
            Err(error) => Check::error(name, format!("Compare of {size}: {error}"), "success", LOG),
        }
    }

    fn read_and_compare(&mut self, nlb: u32) -> Result<(), String> {
        let buffer = self.take(nlb)?;
        let (read, buffer) = self.run(Op::Read { slba: 0, nlb }, Some(buffer));
        read?;
        self.run(Op::Compare { slba: 0, nlb }, buffer).0
    }

    /// What a way to move data is called over RDMA and over NVMe/TCP.
    fn name(&self, rdma: &'static str, tcp: &'static str) -> &'static str {
        match self.queue.device() {
            Some(_) => rdma,
            None => tcp,
        }
    }

    /// Which side took the target's access back after each command. Over NVMe/TCP it has none.
    fn invalidate(&self) -> Option<Check> {
        const NAME: &str = "SEND with Invalidate";
        let now = self.queue.windows_closed();
        let by_controller = now.by_controller - self.closed_before.by_controller;
        let by_host = now.by_host - self.closed_before.by_host;
        let device = self.queue.device()?;
        Some(match (by_controller, by_host) {
            (0, 0) => Check::ok(
                NAME,
                "not asked for: the device has no memory windows, so the target can reach the data \
                 memory of this association while it lasts",
            ),
            (0, by_host) if !device.send_with_invalidate => Check::ok(
                NAME,
                format!("not asked for: the device has none; this host closed {by_host} window(s)"),
            ),
            (by_controller, 0) => {
                Check::ok(NAME, format!("closed {by_controller} memory window(s)"))
            }
            (by_controller, by_host) => Check::warning(
                NAME,
                format!(
                    "closed {by_controller} of {} memory windows",
                    by_controller + by_host
                ),
                "all; this host closes the others itself, at one more work request each",
                "nothing on this host: the target decides",
            ),
        })
    }

    /// Commands that move no data: the capsule and the response only.
    fn without_data(&mut self) -> Check {
        let name = self.name("SEND without data", "capsule without data");
        let nlb = self.blocks(LARGE_BYTES);
        let mut commands = vec![("Flush", Op::Flush)];
        if self.queue.controller().verify {
            commands.push(("Verify", Op::Verify { slba: 0, nlb }));
        }
        let mut told = Vec::new();
        for (command, op) in commands {
            if let (Err(error), _) = self.run(op, None) {
                return Check::error(name, format!("{command}: {error}"), "success", LOG);
            }
            told.push(command);
        }
        Check::ok(name, told.join(", "))
    }
}

/// Compare Failure.
const DIFFERS: &str = "the namespace holds something else";
