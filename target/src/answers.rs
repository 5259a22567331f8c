//! Files, devices and directories that do not answer. A process of its own opens them: one that
//! waits in the kernel, for a file system that stands still, cannot be ended, and would keep
//! `check` and `doctor` from saying so.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::mem;
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use capstan_config::{Backing, Config};

/// What to do about it.
const LOOK: &str = "look at what it is on: `findmnt` has what is mounted, `dmesg` what failed";
/// How long a file or device may take to be opened, in seconds.
const ANSWER_SECONDS: u64 = 5;
/// The same, behind one that did not answer: they are often on the same file system.
const NEXT_ANSWER_SECONDS: u64 = 1;
/// Paths of one process.
const PATHS_MAX: usize = 64;

/// Takes the namespaces out of `config` that are on what does not answer, and says which they are,
/// a line each.
pub fn take_out_silent(config: &mut Config) -> Vec<String> {
    let namespaces = config.subsystems.iter().flat_map(|s| &s.namespaces);
    let paths: BTreeSet<PathBuf> = namespaces
        .filter_map(|namespace| match &namespace.backing {
            Backing::Path(path) => Some(path.clone()),
            Backing::Ram { .. } | Backing::Null { .. } => None,
        })
        .collect();
    let paths: Vec<PathBuf> = paths.into_iter().collect();
    let silent = silent_of(&paths);
    for subsystem in &mut config.subsystems {
        subsystem
            .namespaces
            .retain(|namespace| match &namespace.backing {
                Backing::Path(path) => !silent.iter().any(|silent| silent.path == *path),
                Backing::Ram { .. } | Backing::Null { .. } => true,
            });
    }
    let told = silent.iter().map(|silent| {
        format!(
            "{silent}; a target that is started now waits for it, and nothing else of it was looked at: {LOOK}"
        )
    });
    told.collect()
}

/// Takes the exports out of `config` that are on what does not answer, as absent ones, and says
/// which they are, a line each.
pub fn take_out_silent_exports(config: &mut Config) -> Vec<String> {
    let Some(nfs) = &mut config.nfs else {
        return Vec::new();
    };
    let paths: Vec<_> = nfs.exports.iter().map(|of| of.path.clone()).collect();
    let silent = silent_of(&paths);
    let mut told = Vec::new();
    for export in mem::take(&mut nfs.exports) {
        match silent.iter().find(|silent| silent.path == export.path) {
            None => nfs.exports.push(export),
            Some(silent) => {
                let path = &export.client_path;
                told.push(format!(
                    "export {path}: {silent}; its clients wait until it does, and the others are served: {LOOK}"
                ));
                nfs.absent.push(export);
            }
        }
    }
    told
}

/// Whether each of `paths` answers.
pub(crate) fn answering(paths: &[PathBuf]) -> Vec<bool> {
    let silent = silent_of(paths);
    let answers = |path: &PathBuf| !silent.iter().any(|silent| silent.path == *path);
    paths.iter().map(answers).collect()
}

fn silent_of(paths: &[PathBuf]) -> Vec<Silent> {
    silent(paths).unwrap_or_else(|error| {
        tracing::warn!(%error, "whether files, devices and directories answer was not looked at first");
        Vec::new()
    })
}

/// What was not opened in time.
#[derive(Debug)]
struct Silent {
    path: PathBuf,
    seconds: u64,
}

impl fmt::Display for Silent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, seconds } = self;
        let path = path.display();
        write!(
            f,
            "{path} does not answer: it was not opened within {seconds} s, expected at once"
        )
    }
}

/// Those of `paths` that cannot be opened in time, nor be refused.
fn silent(paths: &[PathBuf]) -> io::Result<Vec<Silent>> {
    let mut silent = Vec::new();
    let mut left = paths;
    while !left.is_empty() {
        let asked = &left[..left.len().min(PATHS_MAX)];
        let mut child = Command::new("/proc/self/exe")
            .arg("open")
            .args(asked)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let opened = child.stdout.take().map(lines).transpose()?;
        let opened = opened.ok_or_else(|| io::Error::other("it has no output"))?;
        let seconds = if silent.is_empty() {
            ANSWER_SECONDS
        } else {
            NEXT_ANSWER_SECONDS
        };
        let mut answered = 0;
        let end = loop {
            match opened.recv_timeout(Duration::from_secs(seconds)) {
                Ok(()) => answered += 1,
                Err(end) => break end,
            }
        };
        if end == RecvTimeoutError::Timeout && answered < asked.len() {
            give_up(&mut child);
            let path = asked[answered].clone();
            silent.push(Silent { path, seconds });
            answered += 1;
        } else {
            // It has told of all, or died of something else, which is looked at in its place.
            let _ = child.wait();
            answered = asked.len();
        }
        left = &left[answered..];
    }
    Ok(silent)
}

/// A message for each line. The thread ends with the process that writes them, or with this one.
fn lines(output: ChildStdout) -> io::Result<Receiver<()>> {
    let (line, lines) = mpsc::channel();
    thread::Builder::new().spawn(move || {
        for _ in BufReader::new(output).lines().map_while(Result::ok) {
            if line.send(()).is_err() {
                break;
            }
        }
    })?;
    Ok(lines)
}

/// It ends when the kernel lets it.
fn give_up(child: &mut Child) {
    if let Err(error) = child.kill() {
        tracing::debug!(%error, pid = child.id(), "it could not be killed");
    }
}

/// The other process: opens `paths` in order, and writes a line when one is opened or refused.
///
/// # Errors
/// Nobody reads the lines.
pub fn open(paths: &[PathBuf]) -> io::Result<()> {
    let mut output = io::stdout().lock();
    for path in paths {
        // What is refused is told where it is looked at. Others, such as a FIFO without a writer,
        // are never opened.
        let is_medium = path.metadata().is_ok_and(|metadata| {
            let kind = metadata.file_type();
            kind.is_file() || kind.is_block_device() || kind.is_dir()
        });
        if is_medium {
            let _ = File::open(path).and_then(|file| file.metadata());
        }
        writeln!(output)?;
        output.flush()?;
    }
    Ok(())
}
