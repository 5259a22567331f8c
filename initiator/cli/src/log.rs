//! Where log lines go: to stderr, which is the log of a disk in the process that serves one.

use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd;

use capstan_rdma::PEER_CAUSED;
use capstan_reactor::log::limit::Limit;
use capstan_reactor::log::{Behind, LastLines};
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::ftruncate;
use tracing::Dispatch;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Most bytes of the log of a disk, which lies in memory: some 5,000 lines.
const LOG_BYTES_MAX: usize = 1 << 20;
/// What a log begins with whose lines so far are gone.
const BEGUN_ANEW: &[u8] = b"the log was begun anew: it was longer than 1 MiB\n";

/// Starts logging. To be kept until the last line; none where there is no thread for it, and lines
/// are written where they are told. Where stderr `is_of_disk` it has a bound.
pub(crate) fn start(verbose: u8, is_of_disk: bool) -> Option<LastLines> {
    let level = match verbose {
        0 => LevelFilter::WARN,
        1 => LevelFilter::INFO,
        _ => LevelFilter::DEBUG,
    };
    let writer = match is_of_disk {
        true => BoxMakeWriter::new(|| Bounded(io::stderr())),
        false => BoxMakeWriter::new(|| crate::output::Stderr),
    };
    let stderr = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // Told on stderr, where that cannot be written: it would panic.
        .log_internal_errors(false)
        .finish();
    let stderr = Dispatch::new(stderr);
    let threads = Limit::start(PEER_CAUSED)
        .and_then(|limit| Behind::start(stderr.clone()).map(|behind| (limit, behind)));
    let Ok((limit, (behind, last_lines))) = threads else {
        stderr.init();
        return None;
    };
    registry().with(level).with(limit).with(behind).init();
    Some(last_lines)
}

/// A file that is open for appending, and is begun anew where it would become longer than
/// [`LOG_BYTES_MAX`]. What is no file is written as it is.
struct Bounded<W>(W);

impl<W: Write + AsFd> Write for Bounded<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = LOG_BYTES_MAX - BEGUN_ANEW.len();
        let bytes = bytes.get(..room).unwrap_or(bytes);
        let is_full = fstat(&self.0).is_ok_and(|found| {
            let has = usize::try_from(found.st_size).unwrap_or(0);
            let is_file = found.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
            is_file && has.saturating_add(bytes.len()) > LOG_BYTES_MAX
        });
        if is_full && ftruncate(&self.0, 0).is_ok() {
            self.0.write_all(BEGUN_ANEW)?;
        }
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::File;

    use super::*;

    #[test]
    fn a_log_is_begun_anew_before_it_is_longer_than_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = File::options().append(true).create_new(true).open(&path);
        let mut log = Bounded(log.unwrap());
        let line = [b'x'; 999].iter().chain(b"\n").copied();
        let line: Vec<_> = line.collect();
        let mut longest = 0;
        for _ in 0..3000 {
            log.write_all(&line).unwrap();
            longest = longest.max(fs::metadata(&path).unwrap().len());
        }
        let bound = u64::try_from(LOG_BYTES_MAX).unwrap();
        assert!(longest <= bound && longest > bound - 1000, "{longest}");
        let text = fs::read(&path).unwrap();
        assert!(text.starts_with(BEGUN_ANEW) && text.ends_with(b"xx\n"));
        // One that is longer itself, too.
        log.write_all(&vec![b'y'; 3 * LOG_BYTES_MAX]).unwrap();
        assert!(fs::metadata(&path).unwrap().len() <= bound);
    }

    #[test]
    fn what_is_no_file_is_written_as_it_is() {
        let (reader, writer) = io::pipe().unwrap();
        Bounded(&writer).write_all(b"a line\n").unwrap();
        drop(writer);
        assert_eq!(io::read_to_string(reader).unwrap(), "a line\n");
    }
}
