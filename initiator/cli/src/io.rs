//! `capstan read`, `write` and `flush`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Error, Result, anyhow, bail};
use capstan_initiator::NamespaceInfo;
use capstan_initiator::internals::words::Count;
use capstan_initiator::{Completion, DirectQueue, Io, Op, Options};
use capstan_memory::Buffer;
use clap::Args;
use nix::libc;
use serde_json::json;

use super::args::{ConnectArgs, OutputArgs, ReplayArgs};
use super::claim::ShareArgs;
use super::interrupt::Interrupts;
use super::values::{parse_nsid, parse_some_bytes, within, wrong};
use super::written::{Unanswered, Written};
use super::{output, taken, warned};

/// Bytes of one I/O.
const CHUNK_BYTES: u32 = 1 << 20;
/// I/Os in progress at once.
const CHUNKS_AHEAD: usize = 8;
/// Of a pipe, this much is read before anything is written where --data-size says how much there
/// will be: as much as the data memory of an attached volume.
const HELD_BYTES_MAX: u64 = 64 << 20;

/// Where in a namespace.
#[derive(Args, Debug)]
struct RangeArgs {
    /// Namespace.
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 1, value_parser = parse_nsid())]
    namespace_id: u32,
    /// First LBA.
    #[arg(long, value_name = "LBA", default_value_t = 0, value_parser = within::<u64>(0..=u64::MAX))]
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
    #[arg(short = 'z', long, value_name = "BYTES", value_parser = parse_some_bytes)]
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
    share: ShareArgs,
    #[command(flatten)]
    range: RangeArgs,
    /// Bytes to write, a multiple of the LBA size; what the input has beyond them is not read
    /// [default: all there are; the last LBA is filled up with zeros].
    #[arg(short = 'z', long, value_name = "BYTES", value_parser = parse_some_bytes)]
    data_size: Option<u64>,
    /// File to read the data from; `-` is stdin. The length of a pipe is known only at its end:
    /// with a --data-size of up to 64 MiB all of it is read before anything is written, and
    /// nothing is where it ends earlier.
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
    #[arg(short = 'N', long, value_name = "NSID", default_value_t = 1, value_parser = parse_nsid())]
    namespace_id: u32,
    #[command(flatten)]
    output: OutputArgs,
}

/// Connects, and looks up the namespace.
fn connect(options: &Options, nsid: u32) -> Result<(DirectQueue, NamespaceInfo)> {
    let queue = taken::connect(options)?;
    let namespace = queue.namespace(nsid)?.clone();
    Ok((queue, namespace))
}

/// Bytes that `namespace` has from `--start-block` on.
fn room(namespace: &NamespaceInfo, start_block: u64) -> Result<u64> {
    let lbas = namespace.nsze_lbas;
    let Some(rest) = lbas.checked_sub(start_block).filter(|rest| *rest > 0) else {
        bail!(
            "--start-block is {start_block}, expected 0 to {}: namespace {} has {}",
            lbas.saturating_sub(1),
            namespace.nsid,
            Count(lbas, "LBA")
        );
    };
    Ok(rest.saturating_mul(namespace.lba_bytes.into()))
}

/// Checks `--data-size` against the namespace.
fn check_data_size(namespace: &NamespaceInfo, range: &RangeArgs, bytes: u64) -> Result<()> {
    let room = room(namespace, range.start_block)?;
    let lba_bytes = namespace.lba_bytes;
    if !bytes.is_multiple_of(lba_bytes.into()) {
        bail!("--data-size is {bytes}, expected a multiple of the LBA size ({lba_bytes})");
    }
    if bytes > room {
        bail!(
            "--data-size is {bytes}, expected at most {room}: the bytes of namespace {} from \
             --start-block {} on",
            namespace.nsid,
            range.start_block
        );
    }
    Ok(())
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
            return Err(wrong(
                "stdout takes the data or JSON, not both; give a file with --data",
            ));
        }
        let interrupts = Interrupts::take()?;
        let so_far = Arc::new(AtomicU64::new(0));
        let told = (Arc::clone(&so_far), self.name());
        interrupts.end_the_process(move || match told.0.load(Ordering::Relaxed) {
            0 => format!("{} has nothing of what was to be read", told.1),
            bytes => format!(
                "{} has the first {bytes} bytes of what was to be read",
                told.1
            ),
        })?;
        let (options, nsid) = (self.connect.options()?, self.range.namespace_id);
        let (mut queue, namespace) = connect(&options, nsid)?;
        let result = self.copy(&mut queue, &namespace, &so_far);
        let result = result.map_err(|error| warned::of_queue(error, &mut queue, &options, nsid));
        // In order also after an error.
        queue.close();
        let blocks = result?;
        done(&self.output, &namespace, self.range.start_block, blocks)
    }

    /// Where the data goes, in words.
    fn name(&self) -> String {
        match self.data.to_str() {
            Some("-") => "stdout".to_owned(),
            _ => self.data.display().to_string(),
        }
    }

    /// Reads what was asked for: how many blocks. `so_far` is how many bytes are where they belong.
    fn copy(
        &self,
        queue: &mut DirectQueue,
        namespace: &NamespaceInfo,
        so_far: &AtomicU64,
    ) -> Result<u64> {
        let lba_bytes = namespace.lba_bytes;
        let bytes = match self.data_size {
            Some(bytes) => {
                check_data_size(namespace, &self.range, bytes)?;
                bytes
            }
            None => room(namespace, self.range.start_block)?,
        };
        let blocks = bytes / u64::from(lba_bytes);
        let mut out = open_output(&self.data)?;
        let told = || format!("writing to {}", self.name());
        let failed = |error: io::Error| match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => anyhow!(
                "{}: {error}; expected room for {} there (df and df -i show what is free): free some, or write elsewhere",
                told(),
                Count(bytes, "byte")
            ),
            _ => Error::from(error).context(told()),
        };
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
            let completion = finished(queue)?;
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
                out.write_all(bytes).map_err(failed)?;
                so_far.fetch_add(len as u64, Ordering::Relaxed);
                written += (len as u64) / u64::from(lba_bytes);
                ahead.pop_front();
            }
        }
        out.flush().map_err(failed)?;
        Ok(blocks)
    }
}

impl Write {
    pub(crate) fn run(&self) -> Result<()> {
        let interrupts = Interrupts::take()?;
        let written = Arc::new(Written::new(name_of(&self.data), self.force_unit_access));
        let told = Arc::clone(&written);
        // A FIFO is opened when somebody writes to it.
        interrupts.end_the_process(move || told.to_string())?;
        let mut input = Input::open(&self.data)?;
        if let Some(asked) = self.data_size {
            // Before there is an association, which would be kept alive by nothing meanwhile.
            input.hold(asked)?;
            // Of nothing at all that is told below.
            if let Some(there) = input.len_bytes.filter(|there| (1..asked).contains(there)) {
                bail!(
                    "--data-size is {asked}, expected at most {there}: the bytes that {} has; \
                     nothing was written",
                    input.name
                );
            }
        }
        let options = self.replay.apply(self.connect.options()?);
        let mut queue = taken::connect(&options)?;
        let namespace = queue.namespace(self.range.namespace_id)?.clone();
        let most = self.most(&namespace, &input)?;
        let what = "written to by `capstan write`";
        let _claim = self.share.claim(&options, &namespace, what)?;
        let mut unanswered = Unanswered::new(&written);
        let copied = self.copy(&mut queue, &namespace, &input, most, &mut unanswered);
        unanswered.drain(&mut queue);
        let copied = copied.map_err(|error| {
            let nsid = self.range.namespace_id;
            warned::of_queue(error, &mut queue, &options, nsid).context(written.to_string())
        });
        let losses = queue.close().into_result();
        let (total, blocks) = match losses {
            Ok(()) => copied?,
            Err(losses) => {
                return Err(match copied {
                    Ok(_) => losses.into(),
                    Err(error) => error.context(losses),
                });
            }
        };
        if total == 0 {
            bail!(
                "{} is empty, expected something to write; nothing was written",
                input.name
            );
        }
        let is_limited = self.data_size.is_some() || input.len_bytes.is_some();
        let has_more = !is_limited && total == most && input.has_more()?;
        if let Some(asked) = self
            .data_size
            .or(input.len_bytes)
            .filter(|asked| *asked != total)
        {
            bail!(
                "{} ended after {}, expected {asked}; what there was is written",
                input.name,
                Count(total, "byte")
            );
        }
        if has_more {
            bail!(
                "{} has more than the {total} bytes of namespace {} from --start-block {} on; those \
                 are written, and the rest is not; with --data-size this is found out beforehand",
                input.name,
                namespace.nsid,
                self.range.start_block
            );
        }
        done(&self.output, &namespace, self.range.start_block, blocks)
    }

    /// Most bytes to write. All of them have room, or nothing is written.
    fn most(&self, namespace: &NamespaceInfo, input: &Input) -> Result<u64> {
        if namespace.read_only {
            bail!(
                "namespace {} is write protected; nothing was written",
                namespace.nsid
            );
        }
        let room = room(namespace, self.range.start_block)?;
        if let Some(bytes) = self.data_size {
            check_data_size(namespace, &self.range, bytes)?;
            return Ok(bytes);
        }
        match input.len_bytes {
            Some(bytes) if bytes > room => bail!(
                "{} has {}, and namespace {} has {room} from --start-block {} on; nothing was written; \
                 --data-size {room} writes the first of them",
                input.name,
                Count(bytes, "byte"),
                namespace.nsid,
                self.range.start_block
            ),
            Some(bytes) => Ok(bytes),
            None => Ok(room),
        }
    }

    /// Writes at most `most` bytes of the input: how many there were, and blocks.
    fn copy(
        &self,
        queue: &mut DirectQueue,
        namespace: &NamespaceInfo,
        input: &Input,
        most: u64,
        unanswered: &mut Unanswered,
    ) -> Result<(u64, u64)> {
        let lba_bytes = namespace.lba_bytes;
        let mut source = input.held.as_slice().chain(&input.file).take(most);
        let mut chunk = vec![0; CHUNK_BYTES.max(lba_bytes) as usize];
        let (mut total, mut blocks) = (0_u64, 0_u64);
        loop {
            let len =
                fill(&mut source, &mut chunk).with_context(|| format!("reading {}", input.name))?;
            if len == 0 {
                break;
            }
            let bytes = len.next_multiple_of(lba_bytes as usize);
            if let Some(tail) = chunk.get_mut(len..bytes) {
                tail.fill(0);
            }
            let nlb = u32::try_from(bytes / lba_bytes as usize)?;
            while queue.in_progress() >= CHUNKS_AHEAD {
                unanswered.wait(queue)?;
            }
            let mut buffer = queue
                .take(nlb * lba_bytes)
                .context("no data memory is left")?;
            buffer.copy_from(0, chunk.get(..bytes).context("a chunk of no whole LBAs")?);
            let io = Io {
                nsid: namespace.nsid,
                op: Op::Write {
                    slba: self.range.start_block + blocks,
                    nlb,
                    fua: self.force_unit_access,
                },
            };
            queue
                .submit(total, io, Some(buffer))
                .map_err(|refused| refused.reason)?;
            unanswered.add(total, len as u64);
            total += len as u64;
            blocks += u64::from(nlb);
        }
        while queue.in_progress() > 0 {
            unanswered.wait(queue)?;
        }
        Ok((total, blocks))
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
        let (options, nsid) = (self.connect.options()?, self.namespace_id);
        let (mut queue, namespace) = connect(&options, nsid)?;
        let io = Io {
            nsid: namespace.nsid,
            op: Op::Flush,
        };
        queue
            .submit(0, io, None)
            .map_err(|refused| refused.reason)?;
        let result = finished(&mut queue);
        let result = result.map_err(|error| warned::of_queue(error, &mut queue, &options, nsid));
        queue.close();
        result?;
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
    let file = File::create(path).map_err(|error| {
        let path = path.display();
        anyhow!("{path}: {error}; expected a file that can be made or written, or - for stdout")
    })?;
    Ok(Box::new(file))
}

/// An input in words.
fn name_of(path: &Path) -> String {
    match path.to_str() {
        Some("-") => "stdin".to_owned(),
        _ => path.display().to_string(),
    }
}

/// Where the data of a write comes from.
pub(super) struct Input {
    pub(super) file: File,
    /// In words.
    pub(super) name: String,
    /// Bytes it has from here on; `None` when only reading them tells: a pipe, a terminal.
    len_bytes: Option<u64>,
    /// The first of them, where they had to be read to know how many there are.
    held: Vec<u8>,
}

impl Input {
    /// Opens a file; `-` is stdin.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let name = name_of(path);
        let file = if path.as_os_str() == "-" {
            let stdin = io::stdin().as_fd().try_clone_to_owned();
            stdin.map(File::from)
        } else {
            File::open(path)
        };
        let file = file.map_err(|error| {
            anyhow!("{name}: {error}; expected a file, a device, a pipe, or - for stdin; nothing was written")
        })?;
        if file.metadata().is_ok_and(|meta| meta.is_dir()) {
            bail!(
                "{name} is a folder; expected a file, a device, a pipe, or - for stdin; nothing was written"
            );
        }
        let len_bytes = len_ahead(&file).with_context(|| format!("looking at {name}"))?;
        Ok(Self {
            file,
            name,
            len_bytes,
            held: Vec::new(),
        })
    }

    /// Reads `asked` bytes ahead where nothing else tells whether there are so many.
    fn hold(&mut self, asked: u64) -> Result<()> {
        if self.len_bytes.is_some() || asked > HELD_BYTES_MAX {
            return Ok(());
        }
        let mut ahead = (&self.file).take(asked);
        let read = ahead.read_to_end(&mut self.held);
        let read = read.with_context(|| format!("reading {}; nothing was written", self.name))?;
        self.len_bytes = Some(read as u64).filter(|read| *read < asked);
        Ok(())
    }

    /// Whether there is more to read.
    fn has_more(&self) -> Result<bool> {
        let count = fill(&mut &self.file, &mut [0]);
        Ok(count.with_context(|| format!("reading {}", self.name))? > 0)
    }
}

/// Bytes from the position of `file` to its end, where that is known.
fn len_ahead(mut file: &File) -> io::Result<Option<u64>> {
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Ok(None);
    }
    let at = file.stream_position()?;
    // Files that the kernel makes up (/proc) have no end to be sought, or a length of zero,
    // whatever they hold.
    let end = match file.seek(io::SeekFrom::End(0)) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(None),
        end => end?,
    };
    file.seek(io::SeekFrom::Start(at))?;
    Ok(Some(end.saturating_sub(at)).filter(|len| *len > 0))
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
