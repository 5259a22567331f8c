//! What is known before a request begins is checked before it begins: a request that cannot end
//! well changes nothing, however many commands it would have become.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use capstan_initiator::{Controller, IoError};
use capstan_tests::host::options;
use capstan_tests::program::{
    CLAIMS, Daemon, complaint, has_tools, own_address, program, told, utf8,
};
use capstan_tests::target::{SUBNQN, TestTarget};

const SIZE: usize = 16 << 20;

/// A target with a RAM namespace of [`SIZE`] bytes in LBAs of 4096, full of `old`, and a folder.
struct Setting {
    _daemon: Daemon,
    at: std::net::SocketAddr,
    dir: tempfile::TempDir,
}

impl Setting {
    fn new() -> Self {
        let at = own_address();
        let setting = Self {
            _daemon: Daemon::start("ram:16MiB", 4096, at),
            at,
            dir: tempfile::tempdir().unwrap(),
        };
        setting.fill();
        setting
    }

    fn file(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        utf8(&path).to_owned()
    }

    fn fill(&self) {
        let old = self.file("old", &[b'o'; SIZE]);
        told(&self.run("write", &["-d", &old], Stdio::null()));
    }

    fn run(&self, command: &str, args: &[&str], stdin: Stdio) -> Output {
        let mut capstan = Command::new(program("capstan"));
        capstan
            .args([command, "-a", &self.at.ip().to_string(), "-n", SUBNQN])
            .args(["--provider", "iwarp"])
            .args(args)
            .env(CLAIMS, self.dir.path())
            .stdin(stdin);
        capstan.output().unwrap()
    }

    fn refused(&self, command: &str, args: &[&str], expected: &[&str]) {
        let error = complaint(&self.run(command, args, Stdio::null()));
        for words in expected {
            assert!(error.contains(words), "{command} {args:?}: {error}");
        }
        assert_eq!(self.written(), 0, "{command} {args:?}: {error}");
    }

    /// Bytes that are no longer what [`Setting::fill`] wrote.
    fn written(&self) -> usize {
        let back = self.dir.path().join("back");
        told(&self.run("read", &["-d", utf8(&back)], Stdio::null()));
        let bytes = fs::read(back).unwrap();
        bytes.iter().filter(|&&byte| byte != b'o').count()
    }

    /// A process whose stdout is a pipe with these bytes.
    fn pipe(&self, bytes: usize) -> std::process::Child {
        let file = self.file("piped", &vec![b'p'; bytes]);
        let mut cat = Command::new("cat");
        cat.arg(file).stdout(Stdio::piped()).stderr(Stdio::null());
        cat.spawn().unwrap()
    }
}

#[test]
fn a_write_without_room_writes_nothing() {
    let setting = Setting::new();
    let large = setting.file("large", &vec![b'n'; SIZE + 1]);
    let exact = setting.file("exact", &vec![b'n'; SIZE]);
    let small = setting.file("small", &[b'n'; 8192]);
    let nothing = "nothing was written";
    let too_long = [
        "large has 16777217 bytes",
        "has 16777216 from --start-block 0",
        nothing,
    ];
    setting.refused("write", &["-d", &large], &too_long);
    let behind = [
        "exact has 16777216 bytes",
        "has 16773120 from --start-block 1",
        nothing,
    ];
    setting.refused("write", &["--start-block", "1", "-d", &exact], &behind);
    let short = [
        "--data-size is 12288, expected at most 8192",
        "small",
        nothing,
    ];
    setting.refused("write", &["-z", "12k", "-d", &small], &short);
    let outside = ["--start-block is 4096, expected 0 to 4095"];
    setting.refused("write", &["--start-block", "4096", "-d", &small], &outside);
    let overflow = ["--start-block is 18446744073709551615, expected 0 to 4095"];
    let last = u64::MAX.to_string();
    setting.refused("write", &["--start-block", &last, "-d", &small], &overflow);
    let size = ["--data-size is 16777216, expected at most 16773120"];
    let args = ["--start-block", "1", "-z", "16m", "-d", &exact];
    setting.refused("write", &args, &size);
    // A file as stdin has a length like any other.
    let stdin = File::open(&large).unwrap();
    let error = complaint(&setting.run("write", &[], stdin.into()));
    assert!(error.contains("stdin has 16777217 bytes"), "{error}");
    assert_eq!(setting.written(), 0);
    told(&setting.run("write", &["-z", "4k", "-d", &large], Stdio::null()));
    assert_eq!(setting.written(), 4096);
}

/// Some files of /proc have no end that can be sought.
#[test]
fn a_file_that_the_kernel_makes_up_is_written() {
    let setting = Setting::new();
    for file in ["/proc/cpuinfo", "/proc/version"] {
        let bytes = fs::read(file).unwrap();
        told(&setting.run("write", &["-d", file], Stdio::null()));
        let whole = bytes.len().next_multiple_of(4096).to_string();
        let back = setting.dir.path().join("back");
        let args = ["-z", &whole, "-d", utf8(&back)];
        told(&setting.run("read", &args, Stdio::null()));
        // The first line of it is what it was, whatever its figures are.
        let line = |bytes: Vec<u8>| {
            bytes
                .split(|&byte| byte == b'\n')
                .next()
                .map(<[u8]>::to_vec)
        };
        assert_eq!(line(fs::read(back).unwrap()), line(bytes), "{file}");
    }
}

#[test]
fn of_a_pipe_what_fits_is_written_and_the_rest_is_told() {
    let setting = Setting::new();
    let mut cat = setting.pipe(SIZE + 5000);
    let stdin = cat.stdout.take().unwrap();
    let args = ["--start-block", "4094"];
    let error = complaint(&setting.run("write", &args, stdin.into()));
    assert!(
        error.contains("stdin has more than the 8192 bytes"),
        "{error}"
    );
    assert!(error.contains("--data-size"), "{error}");
    assert_eq!(setting.written(), 8192);
    cat.wait().unwrap();
    // Told how much there will be, it is known beforehand.
    setting.fill();
    let mut cat = setting.pipe(16384);
    let stdin = cat.stdout.take().unwrap();
    let args = ["--start-block", "4094", "-z", "16k"];
    let error = complaint(&setting.run("write", &args, stdin.into()));
    assert!(
        error.contains("--data-size is 16384, expected at most 8192"),
        "{error}"
    );
    assert_eq!(setting.written(), 0);
    cat.wait().unwrap();
    // And so it is where less comes than was said.
    for bytes in [100, 8192] {
        let mut cat = setting.pipe(bytes);
        let stdin = cat.stdout.take().unwrap();
        let error = complaint(&setting.run("write", &["-z", "12k"], stdin.into()));
        let short = format!("--data-size is 12288, expected at most {bytes}: the bytes that stdin");
        assert!(error.contains(&short), "{error}");
        assert!(error.contains("nothing was written"), "{error}");
        assert_eq!(setting.written(), 0);
        cat.wait().unwrap();
    }
    // What comes beyond is left, as of a file.
    let mut cat = setting.pipe(6000);
    let stdin = cat.stdout.take().unwrap();
    told(&setting.run("write", &["-z", "4k"], stdin.into()));
    assert_eq!(setting.written(), 4096);
    cat.wait().unwrap();
    setting.fill();
    // As much as there is room for is not too much.
    let mut cat = setting.pipe(8192);
    let stdin = cat.stdout.take().unwrap();
    told(&setting.run("write", &["--start-block", "4094"], stdin.into()));
    assert_eq!(setting.written(), 8192);
    cat.wait().unwrap();
}

#[test]
fn reads_and_benches_that_leave_the_namespace_do_not_begin() {
    let setting = Setting::new();
    let out = setting.dir.path().join("out");
    for (args, expected) in [
        (
            &["-z", "16m", "--start-block", "1"][..],
            "--data-size is 16777216, expected at most 16773120",
        ),
        (
            &["--start-block", "4096"],
            "--start-block is 4096, expected 0 to 4095",
        ),
        (&["-z", "1000"], "--data-size is 1000, expected a multiple"),
    ] {
        setting.refused("read", &[args, &["-d", utf8(&out)]].concat(), &[expected]);
        assert!(!Path::new(&out).exists(), "{args:?}");
    }
    for (args, expected) in [
        (
            "--offset 16m",
            "--offset is 16777216 and --bs is 4096, expected at most 16777216 together",
        ),
        ("--offset 17m --size 4k", "--offset is 17825792"),
        (
            "--bs 32m",
            "'32m' for '--bs <BYTES>': expected 512 to 4 MiB",
        ),
        (
            "--offset 8m --size 9m",
            "--size is 9437184, expected 4096 (--bs) to 8388608",
        ),
        (
            "--bs 512",
            "--bs is 512, expected a multiple of the LBA size (4096)",
        ),
        (
            "--offset 512",
            "--offset is 512, expected a multiple of the LBA size (4096)",
        ),
    ] {
        let args: Vec<_> = ["--rw", "write"]
            .into_iter()
            .chain(args.split(' '))
            .collect();
        setting.refused("bench", &args, &[expected]);
    }
}

#[test]
fn a_request_of_the_library_that_leaves_the_namespace_changes_nothing() {
    let target = TestTarget::ram("reactors = 1");
    let controller = Controller::connect(options(target.addresses[0], 1)).unwrap();
    let volume = controller.volume_blocking(1).unwrap().blocking();
    let size = volume.volume().size_bytes();
    let start = size - (4 << 20);
    volume.write(start, &vec![b'o'; 4 << 20]).unwrap();
    let large = vec![b'n'; (4 << 20) + 4096];
    let len = large.len() as u64;
    let mut back = vec![0; 4 << 20];
    for refused in [
        volume.write(start, &large),
        volume.write_fua(start, &large),
        volume.write_zeroes(start, len),
        volume.write_zeroes(start, !4095_u64),
        volume.discard(start, len),
        volume.compare(start, &large),
        volume.read(!4095_u64, &mut back),
    ] {
        assert!(
            matches!(refused, Err(IoError::Invalid { .. })),
            "{refused:?}"
        );
    }
    volume.read(start, &mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == b'o'));
    controller.close();
    drop((volume, controller));
    target.stop();
}

/// A partition table begins at LBA 1 and at the last LBA (UEFI 2.10, 5.3.2): those of the
/// namespace, which a file that tools look at does not have.
#[test]
fn a_bench_that_writes_spares_a_gpt_of_the_namespaces_own_lbas() {
    let setting = Setting::new();
    for at in [1, SIZE / 4096 - 1] {
        let gpt = setting.file("gpt", b"EFI PART");
        let at = at.to_string();
        let args = ["-d", &gpt, "--start-block", &at];
        told(&setting.run("write", &args, Stdio::null()));
        let written = setting.written();
        let args = ["--rw", "write", "--offset", "8m"];
        let error = complaint(&setting.run("bench", &args, Stdio::null()));
        let holds = "namespace 1 holds a partition table (gpt), and a workload";
        assert!(error.contains(holds), "{at}: {error}");
        assert_eq!(setting.written(), written, "{at}");
        setting.fill();
    }
}

/// What is on it is copied to a file in memory, which has the namespace's length.
#[test]
fn a_namespace_that_cannot_be_looked_at_is_written_by_force() {
    let setting = Setting::new();
    let bench = |force: &str| {
        let line = format!(
            "ulimit -f 64; exec {} bench -a {} -n {SUBNQN} --provider iwarp --rw write --bs 1m --size 1m {force}",
            utf8(&program("capstan")),
            setting.at.ip(),
        );
        let mut shell = Command::new("sh");
        let output = shell.args(["-c", &line]).env(CLAIMS, setting.dir.path());
        output.output().unwrap()
    };
    let error = complaint(&bench(""));
    for words in [
        "what is on namespace 1 cannot be looked at, and nothing was written (--force ",
        "a sparse file in memory of 16777216 bytes",
        "ulimit -f",
    ] {
        assert!(error.contains(words), "{words}: {error}");
    }
    assert_eq!(setting.written(), 0);
    told(&bench("--force"));
}

/// Longer than any file may be.
#[test]
fn a_bench_that_writes_looks_at_the_largest_namespaces() {
    let at = own_address();
    let _daemon = Daemon::start("null:15EiB", 4096, at);
    let dir = tempfile::tempdir().unwrap();
    let mut bench = Command::new(program("capstan"));
    bench
        .args(["bench", "-a", &at.ip().to_string(), "-n", SUBNQN])
        .args(["--provider", "iwarp", "--rw", "write", "--size", "64k"])
        .env(CLAIMS, dir.path());
    let output = bench.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("not found out"), "{said}");
    told(&output);
}

/// The first page of swap space, of which blkid asks for no more.
fn swap_header() -> Vec<u8> {
    let mut page = vec![0; 4096];
    let last_page = u32::try_from(SIZE / 4096 - 1).unwrap();
    page[1024..1028].copy_from_slice(&1_u32.to_le_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_le_bytes());
    page[4086..].copy_from_slice(b"SWAPSPACE2");
    page
}

#[test]
fn a_bench_that_writes_spares_what_has_a_signature() {
    let test = "a_bench_that_writes_spares_what_has_a_signature";
    if !has_tools(test, &["blkid", "wipefs"]) {
        return;
    }
    let setting = Setting::new();
    let swap = setting.file("swap", &swap_header());
    told(&setting.run("write", &["-d", &swap], Stdio::null()));
    let written = setting.written();
    for rw in ["write", "randwrite", "rw", "randrw"] {
        // Also where it would begin behind the signature.
        let args = ["--rw", rw, "--offset", "8m", "--numjobs", "2"];
        let error = complaint(&setting.run("bench", &args, Stdio::null()));
        let holds = "namespace 1 holds swap space (swap), and a workload that writes destroys that";
        assert!(error.contains(holds), "{rw}: {error}");
        assert_eq!(setting.written(), written, "{rw}");
    }
    told(&setting.run("bench", &["--rw", "read"], Stdio::null()));
    let args = ["--rw", "write", "--bs", "1m", "--force"];
    told(&setting.run("bench", &args, Stdio::null()));
    // What a benchmark has left is no reason.
    told(&setting.run("bench", &["--rw", "write"], Stdio::null()));
}
