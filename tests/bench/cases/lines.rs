//! `lines`: the words of the target's memory that both of two reactors touch while each serves a
//! host, and one of them writes. There are to be none: the cache line of such a word travels
//! between the cores for every command. Told beside them are lines with different words of both
//! reactors, which is chance: the heap may put what two threads have asked for side by side.
//!
//! Counted by valgrind's lackey, which tells every load and store, with the scheduler's word on
//! whose they are. What one reactor does rarely, such as for a timer, does not count. That the
//! count would find one is shown by a lock that reactors do share.
//!
//! From the same trace: how many lines of data, and of code, a command touches in user space.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::Setting;
use crate::figure::{Better, Bounds, Figure, Findings, Quantity};
use crate::load::{Load, Loader, NULL, RAM, Target};

/// Commands of each host that are looked at, and those before.
const COMMANDS: u64 = 320;
const WARM_UP: u64 = 64;
/// A reactor that touches something as often in that time does so for its commands, or its turns.
const OFTEN: u64 = COMMANDS / 16;
/// Loads and stores of a reactor: a command takes more than a thousand. The thread that does what
/// is due by the clock has 160,000 on a machine that is slowed down.
const TOUCHES_MIN: u64 = 1000 * COMMANDS;
const LINE_BYTES: u64 = 64;
const WORD_BYTES: u64 = 8;

struct Row {
    name: &'static str,
    what: &'static str,
    backing: &'static str,
    depth: u16,
    write: bool,
    /// All commands are for the first LBA, whose lock the reactors share.
    control: bool,
}

const ROWS: [Row; 4] = [
    Row {
        name: "lines-null-read-4k-qd1",
        what: "4 KiB random read, null, depth 1",
        backing: NULL,
        depth: 1,
        write: false,
        control: false,
    },
    Row {
        name: "lines-null-read-4k-qd32",
        what: "4 KiB random read, null, depth 32",
        backing: NULL,
        depth: 32,
        write: false,
        control: false,
    },
    Row {
        name: "lines-ram-write-4k-qd32",
        what: "4 KiB random write, RAM, depth 32",
        backing: RAM,
        depth: 32,
        write: true,
        control: false,
    },
    Row {
        name: "lines-one-lba",
        what: "4 KiB write of one LBA, RAM, whose lock is shared",
        backing: RAM,
        depth: 32,
        write: true,
        control: true,
    },
];

/// Counts the lines of each row.
pub(crate) fn run(setting: &Setting) -> Result<Findings> {
    let mut findings = Findings::default();
    for row in &ROWS {
        let trace = trace(&setting.folder, row).with_context(|| row.name.to_owned())?;
        let (words, lines) = (trace.shared(WORD_BYTES)?, trace.shared(LINE_BYTES)?);
        if row.control {
            ensure!(
                !words.is_empty(),
                "a lock that two reactors share was not found: the count is of no use"
            );
            continue;
        }
        for (of, texts) in [("word", &words), ("line", &lines)] {
            for text in texts {
                eprintln!("{}: {of} {text}", row.name);
            }
        }
        let mut figure = |name: &str, of: &str, texts: &[String], bounds| {
            #[expect(clippy::cast_precision_loss, reason = "a handful")]
            let value = Quantity::new(of, vec![texts.len() as f64]);
            let what = format!("{of} that two reactors touch and one writes: {}", row.what);
            let figure = Figure::plain(name, &what, value, bounds);
            findings.figures.push(figure);
        };
        let none = Bounds::none(Better::Lower);
        figure(row.name, "words", &words, none.clone().gate(0.0));
        figure(
            &format!("{}-lines", row.name),
            "cache lines",
            &lines,
            none.clone(),
        );
        for (of, walk) in [("data", Walk::data as Part), ("code", Walk::code)] {
            let figure = Figure::plain(
                &format!("{}-{of}", row.name),
                &format!("cache lines of {of} that a command touches: {}", row.what),
                Quantity::new("cache lines", vec![trace.touched(walk)]),
                none.clone(),
            );
            findings.figures.push(figure);
        }
    }
    Ok(findings)
}

/// Two hosts at work, one on each reactor.
fn trace(folder: &Path, row: &Row) -> Result<Trace> {
    let pipe = folder.join("lackey.pipe");
    match std::fs::remove_file(&pipe) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => mkfifo(&pipe, Mode::S_IRUSR | Mode::S_IWUSR)?,
    }
    let counts = Arc::new(AtomicBool::new(false));
    let reader = Trace::read(&pipe, Arc::clone(&counts));
    let log = format!(
        "--log-file={}",
        pipe.to_str().context("the folder is text")?
    );
    let tool = [
        "valgrind",
        "--tool=lackey",
        "--trace-mem=yes",
        "--trace-sched=yes",
        &log,
    ];
    let target = Target::start_under(&tool, "reactors = 2\nspin = \"0s\"", &[row.backing])?;
    let load = Load {
        write: row.write,
        ..Load::read(1, 4096, row.depth)
    };
    let mut hosts = Vec::new();
    for number in [1, 2] {
        let mut host = Loader::connect(target.address, number, load)?;
        if row.control {
            host.stay_at_first_block();
        }
        host.begin()?;
        host.go_on(WARM_UP)?;
        hosts.push(host);
    }
    counts.store(true, Ordering::Relaxed);
    // In turn, so that both reactors always have something to do.
    for _ in 0..COMMANDS {
        hosts.iter_mut().try_for_each(|host| host.go_on(1))?;
    }
    counts.store(false, Ordering::Relaxed);
    hosts.into_iter().try_for_each(Loader::end)?;
    let status = target.daemon.stop();
    ensure!(
        status.success(),
        "the target ended with {status} under valgrind"
    );
    reader.join().map_err(|_| anyhow!("the reader panicked"))?
}

/// How often one thread touched something.
#[derive(Clone, Copy, Debug, Default)]
struct Touches {
    loads: u64,
    stores: u64,
    /// Where the program stored to it last.
    storing: u64,
}

impl Touches {
    fn add(&mut self, more: &Self) {
        self.loads += more.loads;
        self.stores += more.stores;
        if more.stores > 0 {
            self.storing = more.storing;
        }
    }
}

/// The lines that one thread touched, one after the other.
#[derive(Default)]
struct Walk {
    data: Vec<u64>,
    code: Vec<u64>,
}

/// Lines of data, or of code.
type Part = fn(&Walk) -> &[u64];

impl Walk {
    fn data(&self) -> &[u64] {
        &self.data
    }

    fn code(&self) -> &[u64] {
        &self.code
    }
}

/// What lackey tells.
#[derive(Default)]
struct Trace {
    /// By word and thread.
    touches: HashMap<(u64, u32), Touches>,
    walks: HashMap<u32, Walk>,
    thread: u32,
    instruction: u64,
}

impl Trace {
    /// Reads a pipe until the program that writes it has ended; only what comes while it `counts`
    /// matters.
    fn read(pipe: &Path, counts: Arc<AtomicBool>) -> JoinHandle<Result<Self>> {
        let pipe = pipe.to_owned();
        thread::spawn(move || {
            let mut trace = Self::default();
            let mut input = BufReader::with_capacity(1 << 20, File::open(pipe)?);
            let mut line = Vec::new();
            loop {
                line.clear();
                if input.read_until(b'\n', &mut line)? == 0 {
                    return Ok(trace);
                }
                trace.take(&line, counts.load(Ordering::Relaxed));
            }
        })
    }

    /// One line: `I  address,bytes` for an instruction, ` L `, ` S ` and ` M ` for loads, stores
    /// and both, or the scheduler's.
    fn take(&mut self, line: &[u8], counts: bool) {
        if let [
            b'I' | b' ',
            kind @ (b' ' | b'L' | b'S' | b'M'),
            b' ',
            rest @ ..,
        ] = line
        {
            let Some((address, bytes)) = address_and_bytes(rest) else {
                return;
            };
            if counts {
                let walk = self.walks.entry(self.thread).or_default();
                let lines = address / LINE_BYTES..=(address + bytes.max(1) - 1) / LINE_BYTES;
                match kind {
                    b' ' => walk.code.extend(lines),
                    _ => walk.data.extend(lines),
                }
            }
            if *kind == b' ' {
                self.instruction = address;
            } else if counts {
                let words = address / WORD_BYTES..=(address + bytes.max(1) - 1) / WORD_BYTES;
                for word in words {
                    let touches = self.touches.entry((word, self.thread)).or_default();
                    touches.loads += u64::from(*kind != b'S');
                    if *kind != b'L' {
                        touches.stores += 1;
                        touches.storing = self.instruction;
                    }
                }
            }
        } else if let Some(thread) = resumed(line) {
            self.thread = thread;
        }
    }

    /// Different lines among as many in a row as a command takes, the mean of all commands of both
    /// reactors.
    #[expect(
        clippy::cast_precision_loss,
        reason = "thousands of commands and lines"
    )]
    fn touched(&self, part: Part) -> f64 {
        let mut walks: Vec<_> = self.walks.values().map(part).collect();
        // Two of them are the reactors'; the others hardly did anything.
        walks.sort_by_key(|lines| std::cmp::Reverse(lines.len()));
        let mut different = 0;
        for lines in walks.iter().take(2) {
            let commands = usize::try_from(COMMANDS).unwrap_or(usize::MAX);
            for command in lines.chunks(lines.len().div_ceil(commands).max(1)) {
                different += command.iter().collect::<HashSet<_>>().len();
            }
        }
        different as f64 / (2 * COMMANDS) as f64
    }

    /// What two threads touch often, one of them storing, in units of `bytes`: one text for each.
    fn shared(&self, bytes: u64) -> Result<Vec<String>> {
        let mut by_unit: HashMap<u64, HashMap<u32, Touches>> = HashMap::new();
        let mut busy: HashMap<u32, u64> = HashMap::new();
        for (&(word, thread), touches) in &self.touches {
            *busy.entry(thread).or_default() += touches.loads + touches.stores;
            let unit = by_unit.entry(word * WORD_BYTES / bytes).or_default();
            unit.entry(thread).or_default().add(touches);
        }
        let at_work = busy.values().filter(|touches| **touches > TOUCHES_MIN);
        if at_work.count() != 2 {
            bail!(
                "the loads and stores of {COMMANDS} commands on each of two reactors, expected more than {} on either, \
                 are by thread: {busy:?}",
                TOUCHES_MIN
            );
        }
        let mut texts = Vec::new();
        for (unit, mut threads) in by_unit {
            threads.retain(|_, touches| touches.loads + touches.stores >= OFTEN);
            if threads.len() > 1 && threads.values().any(|touches| touches.stores >= OFTEN) {
                texts.push(format!("{:#x}: {threads:x?}", unit * bytes));
            }
        }
        texts.sort();
        Ok(texts)
    }
}

/// `04001000,8`: in hexadecimal, and in decimal.
fn address_and_bytes(text: &[u8]) -> Option<(u64, u64)> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let (address, bytes) = text.split_once(',')?;
    Some((u64::from_str_radix(address, 16).ok()?, bytes.parse().ok()?))
}

/// `--1234--   SCHED[2]:  acquired lock (…)`: the thread that runs from here on.
fn resumed(line: &[u8]) -> Option<u32> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, rest) = line.split_once("SCHED[")?;
    let (thread, rest) = rest.split_once("]:")?;
    rest.trim_start()
        .starts_with("acquired lock")
        .then(|| thread.parse().ok())?
}
