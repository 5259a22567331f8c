//! `capstan admin-passthru` and `io-passthru`.

use std::io::{Read as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use capstan_initiator::options::TRANSFER_BYTES_MAX;
use capstan_initiator::{CommandData, CommandReply, NamespaceInfo};
use capstan_initiator::{CommandError, DirectQueue};
use capstan_nvme_proto::opcode::{AdminOpcode, DataDirection, IoOpcode};
use capstan_nvme_proto::sqe::Sqe;
use capstan_nvme_proto::text::Count;
use clap::Args;
use serde_json::json;

use super::args::{ConnectArgs, OutputArgs};
use super::claim::ShareArgs;
use super::interrupt::Interrupts;
use super::io::Input;
use super::output::{self, dump};
use super::taken::connect;
use super::values::{parse_data_len, parse_number, wrong};

/// Arguments of `admin-passthru` and `io-passthru`.
#[derive(Args, Debug)]
pub(crate) struct Passthru {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    share: ShareArgs,
    /// Opcode, like 0x06. Its lowest two bits say which way data goes.
    #[arg(long, value_name = "OPCODE", value_parser = parse_number::<u8>)]
    opcode: u8,
    /// Namespace [default: 0 for an admin command, 1 for an I/O command].
    #[arg(short = 'N', long, value_name = "NSID", value_parser = parse_number::<u32>)]
    namespace_id: Option<u32>,
    /// Command dword 2.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw2: u32,
    /// Command dword 3.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw3: u32,
    /// Command dword 10.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw10: u32,
    /// Command dword 11.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw11: u32,
    /// Command dword 12.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw12: u32,
    /// Command dword 13.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw13: u32,
    /// Command dword 14.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw14: u32,
    /// Command dword 15.
    #[arg(long, value_name = "N", default_value = "0", value_parser = parse_number::<u32>)]
    cdw15: u32,
    /// Bytes of data that the controller sends.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = parse_data_len())]
    data_len: u32,
    /// File whose bytes the controller gets; `-` is stdin.
    #[arg(long, value_name = "FILE")]
    input_file: Option<PathBuf>,
    /// Write the data to stdout as it is, and nothing else.
    #[arg(short = 'b', long, conflicts_with = "output_format")]
    raw_binary: bool,
    #[command(flatten)]
    output: OutputArgs,
}

impl Passthru {
    /// `admin-passthru`.
    pub(crate) fn run_admin(&self) -> Result<()> {
        let opcode = AdminOpcode(self.opcode);
        if opcode == AdminOpcode::ASYNCHRONOUS_EVENT_REQUEST {
            bail!(
                "opcode 0x0c, an Asynchronous Event Request, has no answer until something happens; \
                 this host has sent its own, whose events `capstan -v` shows"
            );
        }
        let data = self.data()?;
        let sqe = self.sqe(0);
        // Where an NSID had another namespace before, a Capstan target refuses commands of an
        // association that has not identified the present one: they may mean the other.
        let mut queue = match sqe.nsid.get() {
            0 => self.connect.admin_queue()?,
            _ => self.connect.admin_queue_and_namespaces()?,
        };
        self.check_len(&data, &queue)?;
        self.answer(queue.admin(sqe, data), queue)
    }

    /// `io-passthru`.
    pub(crate) fn run_io(&self) -> Result<()> {
        let data = self.data()?;
        let options = self.connect.options()?;
        let opcode = self.opcode;
        if may_write(IoOpcode(opcode)) {
            // What it claims is left in order.
            let state = move || format!("opcode {opcode:#04x} was not answered");
            Interrupts::take()?.end_the_process(state)?;
        }
        let mut queue = connect(&options)?;
        self.check_len(&data, &queue)?;
        let sqe = self.sqe(1);
        let mut namespaces = queue.namespaces().iter();
        // One that is not there is the controller's to refuse.
        let namespace = namespaces.find(|n| n.nsid == sqe.nsid.get());
        if let Some(namespace) = namespace {
            self.check_lbas(&data, namespace)?;
        }
        let _claim = match namespace.filter(|_| may_write(IoOpcode(self.opcode))) {
            Some(namespace) => {
                let what = "written to by `capstan io-passthru`";
                Some(self.share.claim(&options, namespace, what)?)
            }
            None => None,
        };
        self.answer(queue.io_passthru(sqe, &data), queue)
    }

    /// Refuses data that no command of this controller carries. All else about the command is the
    /// controller's to refuse: that is what it is sent for.
    fn check_len(&self, data: &CommandData, queue: &DirectQueue) -> Result<()> {
        let (len_bytes, max) = (data.len_bytes(), queue.transfer_bytes_max());
        if len_bytes <= max {
            return Ok(());
        }
        let what = self.what();
        bail!(
            "{what} is {len_bytes} bytes, expected at most {max}: what one command of this controller \
             carries (MDTS)"
        )
    }

    /// Refuses data that is not of whole LBAs, or of more than the command says: a controller that
    /// takes it moves what the command says, and this host could not tell that from an answer that
    /// is cut. Less is the controller's to refuse.
    fn check_lbas(&self, data: &CommandData, namespace: &NamespaceInfo) -> Result<()> {
        let opcode = IoOpcode(self.opcode);
        let moves_lbas = matches!(opcode, IoOpcode::READ | IoOpcode::WRITE | IoOpcode::COMPARE);
        let (len_bytes, lba_bytes) = (u64::from(data.len_bytes()), u64::from(namespace.lba_bytes));
        // NLB, 0's based (NVM Command Set Specification 1.1, figures of command dword 12).
        let lbas = u64::from(self.cdw12 & 0xffff) + 1;
        if !moves_lbas || len_bytes.is_multiple_of(lba_bytes) && len_bytes <= lbas * lba_bytes {
            return Ok(());
        }
        let wrong = match len_bytes.is_multiple_of(lba_bytes) {
            true => "more than the command says".to_owned(),
            false => format!("no whole number of LBAs of {lba_bytes}"),
        };
        bail!(
            "{} is {len_bytes} bytes, {wrong}; expected {}: {} of namespace {}, as bits 15:0 of --cdw12 say, 0's based",
            self.what(),
            lbas * lba_bytes,
            Count(lbas, "LBA"),
            namespace.nsid
        )
    }

    /// What the data is, in words.
    fn what(&self) -> String {
        match &self.input_file {
            Some(path) => format!("--input-file {}", path.display()),
            None => "--data-len".to_owned(),
        }
    }

    fn answer(&self, reply: Result<CommandReply, CommandError>, queue: DirectQueue) -> Result<()> {
        // In order also where the command has failed: else the target hears of a reset.
        queue.close();
        let reply = reply.with_context(|| format!("opcode {:#04x}", self.opcode))?;
        if self.raw_binary {
            let mut stdout = std::io::stdout().lock();
            let written = stdout.write_all(&reply.data).and_then(|()| stdout.flush());
            return written.context("writing to stdout");
        }
        let (dw0, dw1) = (reply.cqe.dw0.get(), reply.cqe.dw1.get());
        let result = u64::from(dw1) << 32 | u64::from(dw0);
        if self.output.is_json() {
            return output::json(&json!({ "result": result, "data": reply.data }));
        }
        output::line(&format!("result : {result:#010x}"))?;
        dump(&reply.data)
    }

    fn sqe(&self, default_nsid: u32) -> Sqe {
        Sqe {
            cdw2: self.cdw2.into(),
            cdw3: self.cdw3.into(),
            cdw10: self.cdw10.into(),
            cdw11: self.cdw11.into(),
            cdw12: self.cdw12.into(),
            cdw13: self.cdw13.into(),
            cdw14: self.cdw14.into(),
            cdw15: self.cdw15.into(),
            ..Sqe::new(self.opcode, 0, self.namespace_id.unwrap_or(default_nsid))
        }
    }

    /// The data of the command, which goes the way its opcode says.
    fn data(&self) -> Result<CommandData> {
        let way = DataDirection::of(self.opcode);
        match (&self.input_file, self.data_len) {
            (None, 0) => Ok(CommandData::None),
            (None, len_bytes) if way == DataDirection::ControllerToHost => {
                Ok(CommandData::FromController(len_bytes))
            }
            (Some(path), 0) if way == DataDirection::HostToController => {
                let Input { file, name, .. } = Input::open(path)?;
                let mut bytes = Vec::new();
                let max = u64::from(TRANSFER_BYTES_MAX);
                // One more than there may be tells a file that is longer, without reading all of
                // it.
                file.take(max + 1)
                    .read_to_end(&mut bytes)
                    .with_context(|| format!("reading {name}"))?;
                if bytes.is_empty() || bytes.len() as u64 > max {
                    bail!("{name} is empty or longer, expected 1 to {max} bytes for a command");
                }
                Ok(CommandData::ToController(bytes.into()))
            }
            _ => Err(wrong(format!(
                "opcode {:#04x} has data {}; --data-len is for data from the controller (bits 1:0 of the \
                 opcode are 10b), --input-file for data to it (01b)",
                self.opcode,
                match way {
                    DataDirection::None => "neither way",
                    DataDirection::HostToController => "to the controller",
                    DataDirection::ControllerToHost => "from the controller",
                    DataDirection::Bidirectional => "both ways, which NVMe over Fabrics has not",
                }
            ))),
        }
    }
}

/// Whether a command may change the namespace: everything but what is known to leave it as it is.
pub(super) fn may_write(opcode: IoOpcode) -> bool {
    !matches!(
        opcode,
        IoOpcode::FLUSH
            | IoOpcode::READ
            | IoOpcode::COMPARE
            | IoOpcode::VERIFY
            | IoOpcode::RESERVATION_REGISTER
            | IoOpcode::RESERVATION_REPORT
            | IoOpcode::RESERVATION_ACQUIRE
            | IoOpcode::RESERVATION_RELEASE
            | IoOpcode::IO_MANAGEMENT_RECEIVE
            | IoOpcode::CANCEL
    )
}
