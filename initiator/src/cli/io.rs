//! `capstan read`, `write` and `flush`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use capstan_initiator::host::NamespaceInfo;
use capstan_initiator::{Completion, DirectQueue, Io, Op};
use capstan_memory::Buffer;
use clap::Args;
use serde_json::json;

use super::args::{self, ConnectArgs, OutputArgs, ReplayArgs, parse_bytes};
use super::output;

/// Bytes of one I/O.
const CHUNK_BYTES: u32 = 1 << 20;
/// I/Os in progress at once.
const CHUNKS_AHEAD: usize = 8;

/// Where in a namespace.
#[derive(Args, Debug)]
struct RangeArgs {
    /// Namespace.
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 1)]
    namespace_id: u32,
    /// First LBA.
    #[arg(long, value_name = "LBA", default_value_t = 0)]
    start_block: u64,
}

/// Arguments of `read`.
#[derive(Args, Debug)]
pub(crate) struct Read {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// Bytes to read, a multiple of the LBA size [default: to the end of the namespace].
    #[arg(short = 'z', long, value_name = "BYTES", value_parser = parse_bytes)]
    data_size: Option<u64>,
    /// File to write the data to; `-` is stdout.
    #[arg(short = 'd', long, value_name = "FILE", default_value = "-")]
    data: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `write`.
#[derive(Args, Debug)]
pub(crate) struct Write {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    replay: ReplayArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// Bytes to write, a multiple of the LBA size [default: all there are; the last LBA is filled
    /// up with zeros].
    #[arg(short = 'z', long, value_name = "BYTES", value_parser = parse_bytes)]
    data_size: Option<u64>,
    /// File to read the data from; `-` is stdin.
    #[arg(short = 'd', long, value_name = "FILE", default_value = "-")]
    data: PathBuf,
    /// Force Unit Access: each write completes only when it is on stable media.
    #[arg(long)]
    force_unit_access: bool,
    #[command(flatten)]
    output: OutputArgs,
}

/// Arguments of `flush`.
#[derive(Args, Debug)]
pub(crate) struct Flush {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Namespace.
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 1)]
    namespace_id: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Connects, and looks up the namespace.
pub(super) fn connect(args: &ConnectArgs, nsid: u32) -> Result<(DirectQueue, NamespaceInfo)> {
    let queue = args.queues()?;
    let namespace = namespace(&queue, nsid)?;
    Ok((queue, namespace))
}

/// A namespace this host can use.
pub(super) fn namespace(queue: &DirectQueue, nsid: u32) -> Result<NamespaceInfo> {
    let found = queue.namespaces().iter().find(|n| n.nsid == nsid);
    let namespace = found.ok_or_else(|| {
        let nsids: Vec<_> = queue
            .namespaces()
            .iter()
            .map(|n| n.nsid.to_string())
            .collect();
        anyhow!(
            "namespace {nsid} does not exist, expected one of: {}",
            nsids.join(", ")
        )
    })?;
    match &namespace.unusable {
        None => Ok(namespace.clone()),
        Some(unusable) => Err(unusable.to_error(nsid).into()),
    }
}

/// Checks a range of bytes that starts at an LBA: the blocks.
fn blocks(namespace: &NamespaceInfo, start_block: u64, bytes: u64) -> Result<u64> {
    let lba_bytes = u64::from(namespace.lba_bytes);
    if !bytes.is_multiple_of(lba_bytes) {
        bail!("--data-size is {bytes}, expected a multiple of the LBA size ({lba_bytes})");
    }
    let blocks = bytes / lba_bytes;
    let end = start_block.checked_add(blocks);
    if end.is_none_or(|end| end > namespace.nsze_lbas) {
        bail!(
            "{blocks} LBAs from LBA {start_block} leave namespace {}, which has {} LBAs",
            namespace.nsid,
            namespace.nsze_lbas
        );
    }
    Ok(blocks)
}

/// The next finished I/O, or its error.
fn finished(queue: &mut DirectQueue) -> Result<Completion> {
    let completion = queue
        .wait(None)
        .ok_or_else(|| anyhow!("no I/O is in progress"))?;
    completion.result.clone()?;
    Ok(completion)
}

impl Read {
    pub(crate) fn run(&self) -> Result<()> {
        if self.output.is_json() && self.data.as_os_str() == "-" {
            bail!("stdout takes the data or JSON, not both; give a file with --data");
        }
        let (mut queue, namespace) = connect(&self.connect, self.range.namespace_id)?;
        let lba_bytes = namespace.lba_bytes;
        let rest = namespace.nsze_lbas.saturating_sub(self.range.start_block);
        let bytes = self
            .data_size
            .unwrap_or_else(|| rest.saturating_mul(lba_bytes.into()));
        let blocks = blocks(&namespace, self.range.start_block, bytes)?;
        let mut out = open_output(&self.data)?;
        let told = || format!("writing to {}", self.data.display());
        let per_chunk = u64::from(CHUNK_BYTES / lba_bytes).max(1);
        let mut chunk = vec![0; CHUNK_BYTES.max(lba_bytes) as usize];
        // Chunks come back in any order and are written in order.
        let mut ahead: VecDeque<Option<Buffer>> = VecDeque::new();
        let (mut next, mut written) = (0_u64, 0_u64);
        while written < blocks {
            while ahead.len() < CHUNKS_AHEAD && next < blocks {
                let nlb = u32::try_from(per_chunk.min(blocks - next))?;
                let buffer = queue
                    .take(nlb * lba_bytes)
                    .context("no data memory is left")?;
                let io = Io {
                    nsid: namespace.nsid,
                    op: Op::Read {
                        slba: self.range.start_block + next,
                        nlb,
                    },
                };
                queue
                    .submit(next / per_chunk, io, Some(buffer))
                    .map_err(|refused| refused.reason)?;
                ahead.push_back(None);
                next += u64::from(nlb);
            }
            let completion = finished(&mut queue)?;
            let at = usize::try_from(completion.token - written / per_chunk)?;
            if let Some(place) = ahead.get_mut(at) {
                *place = completion.buffer;
            }
            while let Some(Some(buffer)) = ahead.front() {
                let len = buffer.len_bytes() as usize;
                let bytes = chunk
                    .get_mut(..len)
                    .context("a buffer larger than a chunk")?;
                buffer.copy_to(0, bytes);
                out.write_all(bytes).with_context(told)?;
                written += (len as u64) / u64::from(lba_bytes);
                ahead.pop_front();
            }
        }
        out.flush().with_context(told)?;
        queue.close();
        done(&self.output, &namespace, self.range.start_block, blocks)
    }
}

impl Write {
    pub(crate) fn run(&self) -> Result<()> {
        let options = self.replay.apply(self.connect.options()?);
        let mut queue = args::connect(&options)?;
        let namespace = namespace(&queue, self.range.namespace_id)?;
        let lba_bytes = namespace.lba_bytes;
        if let Some(bytes) = self.data_size {
            blocks(&namespace, self.range.start_block, bytes)?;
        }
        let mut input = open_input(&self.data)?.take(self.data_size.unwrap_or(u64::MAX));
        let mut chunk = vec![0; CHUNK_BYTES.max(lba_bytes) as usize];
        let mut at_lba = self.range.start_block;
        let mut total = 0_u64;
        loop {
            let len = fill(&mut input, &mut chunk)
                .with_context(|| format!("reading {}", self.data.display()))?;
            if len == 0 {
                break;
            }
            total += len as u64;
            let bytes = len.next_multiple_of(lba_bytes as usize);
            if let Some(tail) = chunk.get_mut(len..bytes) {
                tail.fill(0);
            }
            let nlb = blocks(&namespace, at_lba, bytes as u64)?;
            let nlb = u32::try_from(nlb)?;
            while queue.in_progress() >= CHUNKS_AHEAD {
                finished(&mut queue)?;
            }
            let mut buffer = queue
                .take(nlb * lba_bytes)
                .context("no data memory is left")?;
            buffer.copy_from(0, chunk.get(..bytes).context("a chunk of no whole LBAs")?);
            let io = Io {
                nsid: namespace.nsid,
                op: Op::Write {
                    slba: at_lba,
                    nlb,
                    fua: self.force_unit_access,
                },
            };
            queue
                .submit(at_lba, io, Some(buffer))
                .map_err(|refused| refused.reason)?;
            at_lba += u64::from(nlb);
        }
        while queue.in_progress() > 0 {
            finished(&mut queue)?;
        }
        queue.close();
        if let Some(asked) = self.data_size.filter(|asked| *asked != total) {
            bail!(
                "{} has {total} bytes, --data-size is {asked}; what there was is written",
                self.data.display()
            );
        }
        let start_block = self.range.start_block;
        done(&self.output, &namespace, start_block, at_lba - start_block)
    }
}

/// Tells programs what was read or written; people see that nothing went wrong.
fn done(
    output: &OutputArgs,
    namespace: &NamespaceInfo,
    start_block: u64,
    blocks: u64,
) -> Result<()> {
    if !output.is_json() {
        return Ok(());
    }
    output::json(&json!({
        "nsid": namespace.nsid,
        "start_block": start_block,
        "blocks": blocks,
        "bytes": blocks * u64::from(namespace.lba_bytes),
    }))
}

impl Flush {
    pub(crate) fn run(&self) -> Result<()> {
        let (mut queue, namespace) = connect(&self.connect, self.namespace_id)?;
        let io = Io {
            nsid: namespace.nsid,
            op: Op::Flush,
        };
        queue
            .submit(0, io, None)
            .map_err(|refused| refused.reason)?;
        finished(&mut queue)?;
        queue.close();
        if self.output.is_json() {
            return output::json(&json!({ "nsid": namespace.nsid, "flushed": true }));
        }
        Ok(())
    }
}

fn open_output(path: &Path) -> Result<Box<dyn io::Write>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdout().lock()));
    }
    let file = File::create(path).with_context(|| format!("creating {}", path.display()))?;
    Ok(Box::new(file))
}

fn open_input(path: &Path) -> Result<Box<dyn io::Read>> {
    if path.as_os_str() == "-" {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    Ok(Box::new(file))
}

/// Reads until `chunk` is full or the input ends.
fn fill(input: &mut impl io::Read, chunk: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while let Some(rest) = chunk.get_mut(len..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
