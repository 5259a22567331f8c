//! Finding the namespaces: the active list, then each namespace's descriptors and itself.

use capstan_nvme_proto::command::{AdminCommand, Identify};
use capstan_nvme_proto::cqe::Cqe;
use capstan_nvme_proto::identify::{Cns, NamespaceList};
use capstan_nvme_proto::sgl::Sgl;
use capstan_nvme_proto::status::Status;

use super::action::{CommandData, Event, Step};
use super::association::{Host, State};
use super::command::{IDENTIFY_DATA_BYTES, Purpose};
use super::info::{NamespaceInfo, Unidentified};
use crate::error::ConnectError;

/// Times a command is sent again whose data was corrupted on the way.
const RETRIES_MAX: u32 = 5;
/// Most namespaces of one controller this host looks at.
pub(super) const NAMESPACES_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// CNS 02h: active NSIDs above this one.
    List {
        above: u32,
    },
    /// CNS 03h of the namespace at this place of the list.
    Descriptors(usize),
    /// CNS 00h of the same.
    Namespace(usize),
    /// Once more, as Linux does when it has compared the identifiers: where hosts have seen other
    /// namespaces, a Capstan target takes I/O at once then. Here `compare_with` decides.
    Again(usize),
    Done,
}

/// A walk over the namespaces.
#[derive(Debug)]
pub(super) struct Scan {
    stage: Stage,
    nsids: Vec<u32>,
    /// Of the namespace that is looked at.
    descriptors: Vec<u8>,
    found: Vec<NamespaceInfo>,
    unidentified: Vec<Unidentified>,
    /// Of the last command.
    retries: u32,
}

impl Scan {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::List { above: 0 },
            nsids: Vec::new(),
            descriptors: Vec::new(),
            found: Vec::new(),
            unidentified: Vec::new(),
            retries: 0,
        }
    }

    /// The next command; `None` when the walk is over.
    fn next(&self) -> Option<Identify> {
        let nsid = |at: usize| self.nsids.get(at).copied();
        match self.stage {
            Stage::List { above } => Some(Identify::new(Cns::ACTIVE_NAMESPACES, above)),
            Stage::Descriptors(at) => Some(Identify::new(Cns::NAMESPACE_ID_DESCRIPTORS, nsid(at)?)),
            Stage::Namespace(at) | Stage::Again(at) => {
                Some(Identify::new(Cns::NAMESPACE, nsid(at)?))
            }
            Stage::Done => None,
        }
    }

    /// Takes an answer; `false` when the controller broke the specification.
    fn answer(&mut self, status: Status, data: &[u8]) -> bool {
        let success = status.is_success();
        match self.stage {
            Stage::List { above } => {
                let Some(list) = success.then(|| NamespaceList::from_data(data)).flatten() else {
                    // A controller without the list has namespace 1 or none.
                    self.stage = Stage::Done;
                    return success;
                };
                let mut last = above;
                let mut conforms = true;
                for nsid in list.iter() {
                    // Ascending order also bounds the walk.
                    if nsid <= last || self.nsids.len() == NAMESPACES_MAX {
                        conforms &= nsid > last;
                        break;
                    }
                    last = nsid;
                    self.nsids.push(nsid);
                }
                let more = conforms && list.is_full() && self.nsids.len() < NAMESPACES_MAX;
                self.stage = if more {
                    Stage::List { above: last }
                } else {
                    self.namespace_or_done(0)
                };
                conforms
            }
            Stage::Descriptors(at) => {
                // Older controllers do not have them.
                self.descriptors.clear();
                self.descriptors
                    .extend_from_slice(if success { data } else { &[] });
                self.stage = Stage::Namespace(at);
                true
            }
            Stage::Namespace(at) => {
                let nsid = self.nsids.get(at).copied().unwrap_or(0);
                // It may have gone since the list was made.
                let is_gone = status.code() == Status::INVALID_NAMESPACE_OR_FORMAT
                    || success && data.len() >= IDENTIFY_DATA_BYTES as usize;
                let info = success.then(|| NamespaceInfo::parse(nsid, data)).flatten();
                if info.is_none() && !is_gone {
                    self.unidentified.push(Unidentified { nsid, status });
                }
                self.stage = match info {
                    Some(mut info) => {
                        info.describe(&self.descriptors);
                        self.found.push(info);
                        Stage::Again(at)
                    }
                    None => self.namespace_or_done(at + 1),
                };
                true
            }
            Stage::Again(at) => {
                self.stage = self.namespace_or_done(at + 1);
                true
            }
            Stage::Done => true,
        }
    }

    fn namespace_or_done(&self, at: usize) -> Stage {
        if at < self.nsids.len() {
            Stage::Descriptors(at)
        } else {
            Stage::Done
        }
    }
}

impl Host {
    pub(super) fn continue_scan(&mut self, now_us: u64) {
        let Some(scan) = &self.scan else {
            return;
        };
        if let Some(identify) = scan.next() {
            let data = CommandData::FromController(IDENTIFY_DATA_BYTES);
            self.send(Purpose::Scan, data, now_us, |cid| {
                AdminCommand::Identify(identify).encode(cid, Sgl::EMPTY)
            });
        } else {
            self.scan_done(now_us);
        }
    }

    pub(super) fn scan_answered(&mut self, cqe: &Cqe, data: &[u8], now_us: u64) {
        let status = cqe.status();
        let Some(scan) = &mut self.scan else {
            return;
        };
        // That there is no such namespace is an answer; that the answer was lost is none.
        if status.code() == Status::TRANSIENT_TRANSPORT_ERROR {
            if scan.retries == RETRIES_MAX {
                let step = Step::Scan.name();
                return self.fail(ConnectError::Command { step, status }, now_us);
            }
            scan.retries += 1;
            return self.continue_scan(now_us);
        }
        scan.retries = 0;
        if !scan.answer(status, data) {
            self.counters.bad_data += 1;
        }
        self.continue_scan(now_us);
    }

    fn scan_done(&mut self, now_us: u64) {
        let Some(scan) = self.scan.take() else {
            return;
        };
        let mut found = scan.found;
        for namespace in &mut found {
            let count = self.first_seen.len();
            let mut seen = self.first_seen.iter_mut();
            match seen.find(|n| n.nsid == namespace.nsid) {
                Some(first) => {
                    namespace.compare_with(first);
                    if namespace.unusable.is_none() {
                        first.nsze_lbas = first.nsze_lbas.max(namespace.nsze_lbas);
                    }
                }
                None if count < NAMESPACES_MAX => {
                    self.first_seen.push(namespace.clone());
                }
                None => {}
            }
        }
        let changed = found != self.namespaces;
        self.namespaces = found;
        let known = std::mem::replace(&mut self.unidentified, scan.unidentified);
        for unidentified in self.unidentified.iter().filter(|now| !known.contains(now)) {
            self.events.push_back(Event::Unidentified(*unidentified));
        }
        if changed && self.was_live {
            self.events.push_back(Event::NamespacesChanged);
        }
        if matches!(
            self.state,
            State::Connecting {
                step: Step::Scan,
                ..
            }
        ) {
            self.set_up(now_us);
        }
        if std::mem::take(&mut self.scan_again) {
            self.rescan(now_us);
        }
    }
}
