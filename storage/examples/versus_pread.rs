//! Random 4 KiB reads through an engine, as a ratio to plain `pread` on the same file.
//!
//! `cargo run --release -p capstan-storage --example versus_pread -- FILE [SECONDS]`
//!
//! The file must exist (`fallocate -l 1G FILE` and fill it). Ratios of one run mean something,
//! absolute numbers of a shared machine do not. A figure for the reader, not a test.
#![expect(clippy::print_stdout, reason = "the output is the point")]

use std::env;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use capstan_memory::{Pages, Pool};
use capstan_storage::{
    Data, DirectIo, Engine, EngineConfig, Io, Op, Submitted, Volume, VolumeSpec,
};

const LBA: usize = 4096;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let mut arguments = env::args_os().skip(1);
    let path = PathBuf::from(
        arguments
            .next()
            .ok_or("usage: versus_pread FILE [SECONDS]")?,
    );
    let seconds: u64 = match arguments.next() {
        Some(text) => text.to_string_lossy().parse()?,
        None => 3,
    };
    let limit = Duration::from_secs(seconds);
    for (direct, what) in [(DirectIo::On, "O_DIRECT"), (DirectIo::Off, "page cache")] {
        if direct == DirectIo::Off {
            // Into the page cache first, or the first in the row pays for all.
            io::copy(&mut File::open(&path)?, &mut io::sink())?;
        }
        let baseline = pread(&path, direct, limit)?;
        println!("{what}: pread at depth 1: {baseline:.0} IOPS = 1.00");
        for (depth, registered) in [(1, true), (1, false), (32, true), (32, false)] {
            let iops = engine(&path, direct, depth, registered, limit)?;
            let buffers = if registered { "registered" } else { "plain" };
            println!(
                "{what}: engine at depth {depth}, {buffers} buffers: {iops:.0} IOPS = {:.2}",
                iops / baseline
            );
        }
    }
    Ok(())
}

/// The same sequence of places for everyone (an LCG; quality does not matter, repeatability does).
struct Places(u64, u64);

impl Places {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % self.1
    }
}

fn pread(path: &Path, direct: DirectIo, limit: Duration) -> Outcome<f64> {
    let flags = if direct == DirectIo::On { 0o40000 } else { 0 };
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    let mut places = Places(1, file.metadata()?.len() / LBA as u64);
    let mut memory = vec![0; 2 * LBA];
    let start = memory.as_ptr().align_offset(LBA);
    let (begin, mut done) = (Instant::now(), 0u32);
    while begin.elapsed() < limit {
        for _ in 0..32 {
            file.read_exact_at(&mut memory[start..start + LBA], places.next() * LBA as u64)?;
        }
        done += 32;
    }
    Ok(f64::from(done) / begin.elapsed().as_secs_f64())
}

fn engine(
    path: &Path,
    direct: DirectIo,
    depth: u32,
    registered: bool,
    limit: Duration,
) -> Outcome<f64> {
    let engine = Engine::new(&EngineConfig::default())?;
    let pool = Pool::new(1 << 20, Pages::Ordinary)?;
    if registered {
        println!("  {:?}", engine.register_slab(pool.slab()));
    }
    let spec = VolumeSpec::Path {
        path: path.to_path_buf(),
        lba_bytes: Some(4096),
        read_only: true,
        direct,
    };
    let mut volume = spec.open(&engine)?;
    let mut places = Places(1, volume.geometry().lbas);
    let mut out = Vec::with_capacity(depth as usize);
    for _ in 0..depth {
        let buffer = pool.take(4096).ok_or("no buffer")?;
        read(
            &mut *volume,
            places.next(),
            Data {
                buffer,
                offset_bytes: 0,
            },
        )?;
    }
    let (begin, mut done) = (Instant::now(), 0u32);
    while begin.elapsed() < limit {
        for _ in 0..32 {
            engine.submit_batch()?;
            engine.poll(&mut out);
            for completion in out.drain(..) {
                completion.result?;
                done += 1;
                let data = completion.data.ok_or("no data")?;
                read(&mut *volume, places.next(), data)?;
            }
        }
    }
    Ok(f64::from(done) / begin.elapsed().as_secs_f64())
}

fn read(volume: &mut dyn Volume, lba: u64, data: Data) -> Outcome<()> {
    let io = Io {
        token: 0,
        op: Op::Read { lba, lbas: 1 },
        data: Some(data),
    };
    match volume.submit(io, 0) {
        Submitted::Pending => Ok(()),
        Submitted::Done(completion) => Err(format!("{:?}", completion.result).into()),
    }
}
