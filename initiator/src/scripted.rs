//! A controller for tests: it answers as told, with a RAM disk behind its namespaces.

use capstan_nvme_proto::command::{AdminCommand, CrossControllerReset, FabricsCommand};
use capstan_nvme_proto::error::ErrorLocation;
use capstan_nvme_proto::fabrics::ConnectData;
use capstan_nvme_proto::features::{FeatureId, NumberOfQueues};
use capstan_nvme_proto::identify::{Cns, IdentifyController, IdentifyNamespace, NamespaceList};
use capstan_nvme_proto::log::{
    CrossControllerResetEntry, CrossControllerResetFlags, CrossControllerResetLogHeader,
    CrossControllerResetStatus, LSP_REMOVE_COMPLETED, LogPageId,
};
use capstan_nvme_proto::nqn::HostId;
use capstan_nvme_proto::opcode::AdminOpcode;
use capstan_nvme_proto::property::{Cap, Csts, Property, ShutdownStatus};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::status::Status;
use zerocopy::{FromZeros, IntoBytes};

/// Identifier of the host that tests connect as.
pub(crate) const HOSTID: HostId = HostId([7; 16]);
/// CNTLID of the first controller.
pub(crate) const CNTLID: u16 = 0x11;
/// Blocks of each namespace, of 4096 bytes.
pub(crate) const NSZE_LBAS: u64 = 1000;
/// Bytes of a block.
pub(crate) const LBA_BYTES: usize = 4096;
/// Most in-capsule data.
pub(crate) const IN_CAPSULE_BYTES: usize = 8192;

/// An answer: status, dwords 0 and 1, data for the host.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

impl Answer {
    pub(crate) fn success(data: Vec<u8>) -> Self {
        Self {
            status: Status::SUCCESS,
            result: 0,
            data,
        }
    }

    fn result(result: u64) -> Self {
        Self {
            result,
            ..Self::success(Vec::new())
        }
    }
}

/// What becomes of Cross-Controller Reset.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ResetManner {
    /// It is done when it is answered.
    Immediate,
    /// It goes on; the log page says this of it.
    Goes(CrossControllerResetStatus),
    /// It goes on, and the log page says nothing of it.
    Forgotten,
    /// It is refused.
    Refused(Status),
}

/// What the controller says, and how.
pub(crate) struct ScriptedController {
    /// CSTS polls before RDY.
    pub(crate) polls_before_ready: u32,
    /// Status of the Connect of a queue, with dword 0.
    pub(crate) connect: fn(u16) -> (Status, u32),
    /// Queues whose Connect asks for no SQ flow control are refused, from this QID on.
    pub(crate) refuses_no_flow_control_on: Option<u16>,
    /// Such refusals.
    pub(crate) refused_connects: u32,
    /// Whether the Connect of each queue left SQ flow control on, by QID.
    pub(crate) flow_control: Vec<bool>,
    /// CNTLID of the next association, and whether the one behind it has another.
    pub(crate) cntlid: u16,
    pub(crate) keeps_cntlid: bool,
    pub(crate) namespaces: Vec<u32>,
    pub(crate) nguid: [u8; 16],
    pub(crate) identify: fn(&mut IdentifyController),
    /// Identify commands of namespaces whose data does not arrive as it was sent.
    pub(crate) corrupt_identifies: u32,
    /// The status of Identify Namespace for this NSID.
    pub(crate) fails_identify: Option<(u32, Status)>,
    /// Keep Alives answered.
    pub(crate) keep_alives: u32,
    pub(crate) answer_keep_alive: bool,
    /// Get Log Page is answered.
    pub(crate) answer_logs: bool,
    /// CC.SHN was set.
    pub(crate) shutdown: bool,
    /// It leads to CSTS.CFS.
    pub(crate) shutdown_fails: bool,
    /// It leads to nothing.
    pub(crate) shutdown_hangs: bool,
    /// How often.
    pub(crate) shutdowns: u32,
    pub(crate) reset_manner: ResetManner,
    /// Cross-Controller Resets that came.
    pub(crate) resets: Vec<CrossControllerReset>,
    /// Format NVM commands that came; they are not answered.
    pub(crate) formats: u32,
}

impl ScriptedController {
    pub(crate) fn new() -> Self {
        Self {
            polls_before_ready: 0,
            connect: |_| (Status::SUCCESS, 0),
            refuses_no_flow_control_on: None,
            refused_connects: 0,
            flow_control: Vec::new(),
            cntlid: CNTLID - 1,
            keeps_cntlid: false,
            namespaces: vec![1, 7],
            nguid: [9; 16],
            identify: |_| {},
            corrupt_identifies: 0,
            fails_identify: None,
            keep_alives: 0,
            answer_keep_alive: true,
            answer_logs: true,
            shutdown: false,
            shutdown_fails: false,
            shutdown_hangs: false,
            shutdowns: 0,
            reset_manner: ResetManner::Immediate,
            resets: Vec::new(),
            formats: 0,
        }
    }

    /// The answer to an admin or Fabrics command with `data` from the host; `None` when it waits
    /// (an event) or is left unanswered.
    pub(crate) fn answer(&mut self, qid: u16, sqe: &Sqe, data: &[u8]) -> Option<Answer> {
        if sqe.is_fabrics() {
            return Some(self.fabrics(qid, sqe, data));
        }
        if sqe.admin_opcode() == AdminOpcode::FORMAT_NVM {
            self.formats += 1;
            return None;
        }
        match AdminCommand::parse(sqe).unwrap() {
            AdminCommand::Identify(identify)
                if identify.cns != Cns::CONTROLLER && self.corrupt_identifies > 0 =>
            {
                self.corrupt_identifies -= 1;
                Some(Answer {
                    status: Status::TRANSIENT_TRANSPORT_ERROR,
                    result: 0,
                    data: Vec::new(),
                })
            }
            AdminCommand::Identify(identify)
                if identify.cns == Cns::NAMESPACE
                    && self
                        .fails_identify
                        .is_some_and(|(of, _)| of == identify.nsid) =>
            {
                let (_, status) = self.fails_identify?;
                Some(Answer {
                    status,
                    result: 0,
                    data: Vec::new(),
                })
            }
            AdminCommand::Identify(identify) => {
                let data = self.identify_data(identify.cns, identify.nsid);
                Some(Answer::success(data))
            }
            AdminCommand::SetFeatures(set) if set.fid == FeatureId::NUMBER_OF_QUEUES => {
                let asked = NumberOfQueues::decode(set.cdw11);
                assert_eq!(asked.submission, asked.completion);
                Some(Answer::result(asked.encode().into()))
            }
            AdminCommand::AsynchronousEventRequest => None,
            AdminCommand::KeepAlive => {
                self.keep_alives += u32::from(self.answer_keep_alive);
                self.answer_keep_alive.then(|| Answer::result(0))
            }
            AdminCommand::GetLogPage(_) if !self.answer_logs => None,
            AdminCommand::GetLogPage(log) if log.lid == LogPageId::CROSS_CONTROLLER_RESET => {
                assert_eq!(log.lsp, LSP_REMOVE_COMPLETED);
                Some(Answer::success(self.reset_log(log.length_bytes)))
            }
            AdminCommand::GetLogPage(log) => {
                let len = usize::try_from(log.length_bytes).unwrap();
                Some(Answer::success(vec![0; len]))
            }
            AdminCommand::SetFeatures(_)
            | AdminCommand::GetFeatures(_)
            | AdminCommand::GetLbaStatus(_) => Some(Answer::result(0)),
            AdminCommand::Abort(_) => panic!("unexpected Abort"),
            AdminCommand::CrossControllerReset(command) => {
                self.resets.push(command);
                Some(match self.reset_manner {
                    ResetManner::Immediate => Answer::result(1),
                    ResetManner::Goes(_) | ResetManner::Forgotten => Answer::result(0),
                    ResetManner::Refused(status) => Answer {
                        status,
                        ..Answer::result(0)
                    },
                })
            }
        }
    }

    fn reset_log(&self, len_bytes: u64) -> Vec<u8> {
        let mut page = vec![0; usize::try_from(len_bytes).unwrap()];
        if let (ResetManner::Goes(status), Some(reset)) = (self.reset_manner, self.resets.last()) {
            let flags = CrossControllerResetFlags::all();
            let entry =
                CrossControllerResetEntry::new(reset.icid, reset.ciu, CNTLID, status, flags);
            let other = CrossControllerResetEntry::new(
                reset.icid,
                reset.ciu.wrapping_add(1),
                CNTLID,
                CrossControllerResetStatus::SUCCESSFUL,
                flags,
            );
            page[..8].copy_from_slice(CrossControllerResetLogHeader::new(2).as_bytes());
            page[8..24].copy_from_slice([other, entry].as_bytes());
        }
        page
    }

    fn fabrics(&mut self, qid: u16, sqe: &Sqe, data: &[u8]) -> Answer {
        match FabricsCommand::parse(sqe).unwrap() {
            FabricsCommand::Connect(connect) => {
                let parsed = ConnectData::from_data(data).unwrap().parse().unwrap();
                assert_eq!((connect.qid, parsed.hostid), (qid, HOSTID));
                assert_eq!(parsed.cntlid, if qid == 0 { 0xFFFF } else { self.cntlid });
                if qid == 0 {
                    self.shutdown = false;
                    let first = self.cntlid < CNTLID;
                    self.cntlid += u16::from(first || !self.keeps_cntlid);
                }
                let flow_control = !connect.cattr.disable_sq_flow_control();
                self.flow_control.truncate(qid.into());
                self.flow_control.push(flow_control);
                let refuses = |from| !flow_control && qid >= from;
                if self.refuses_no_flow_control_on.is_some_and(refuses) {
                    self.refused_connects += 1;
                    return Answer {
                        status: Status::CONNECT_INVALID_PARAMETERS.dnr(),
                        ..Answer::result(ErrorLocation::sqe(46).connect_dw0().into())
                    };
                }
                let (status, dw0) = match (self.connect)(qid) {
                    (status, 0) => (status, self.cntlid.into()),
                    other => other,
                };
                Answer {
                    status,
                    ..Answer::result(dw0.into())
                }
            }
            FabricsCommand::PropertyGet(get) => Answer::result(self.property(get.property)),
            FabricsCommand::PropertySet(set) => {
                self.shutdown = set.value >> 14 & 0b11 == 1;
                self.shutdowns += u32::from(self.shutdown);
                Answer::result(0)
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn property(&mut self, property: Property) -> u64 {
        match property {
            Property::VS => 0x0002_0100,
            Property::CAP => {
                let mut cap = Cap::decode(0);
                cap.mqes = 128;
                cap.to_500ms = 4;
                cap.css = Cap::CSS_NVM;
                cap.encode()
            }
            Property::CSTS => {
                let mut csts = Csts::decode(0);
                csts.rdy = self.polls_before_ready == 0;
                self.polls_before_ready = self.polls_before_ready.saturating_sub(1);
                csts.cfs = self.shutdown && self.shutdown_fails;
                if self.shutdown && !self.shutdown_fails && !self.shutdown_hangs {
                    csts.shst = ShutdownStatus::COMPLETE;
                }
                csts.encode().into()
            }
            other => panic!("unexpected {other}"),
        }
    }

    fn identify_data(&self, cns: Cns, nsid: u32) -> Vec<u8> {
        match cns {
            Cns::CONTROLLER => {
                let mut identify = IdentifyController::new_zeroed();
                identify.sgls = 0x0010_0005.into();
                identify.ioccsz_16bytes = (4 + 512).into();
                identify.iorcsz_16bytes = 1.into();
                identify.mdts = 5;
                identify.aerl_z = 3;
                // Compare, Dataset Management, Write Zeroes, Verify.
                identify.oncs = 0x008D.into();
                identify.oaes = (1 << 8).into();
                (self.identify)(&mut identify);
                identify.as_bytes().to_vec()
            }
            Cns::ACTIVE_NAMESPACES => {
                let mut list = NamespaceList::new_zeroed();
                list.fill(self.namespaces.iter().copied().filter(|n| *n > nsid));
                list.as_bytes().to_vec()
            }
            Cns::NAMESPACE => {
                let mut identify = IdentifyNamespace::new_zeroed();
                identify.nsze_lbas = NSZE_LBAS.into();
                identify.lbaf[0].lbads = 12;
                identify.nguid = self.nguid;
                identify.as_bytes().to_vec()
            }
            _ => vec![0; 4096],
        }
    }
}
