//! What messages quote: command lines of the two programs parse, commands of the system have a test
//! that runs them, keys are keys and options are options.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use capstan_tests::program::{has_tools, program, shell};

/// The crates whose messages people read.
const CRATES: [&str; 12] = [
    "config",
    "control",
    "doctor",
    "initiator",
    "initiator/cli",
    "memory",
    "rdma",
    "reactor",
    "storage",
    "subsystem",
    "target",
    "transport",
];

/// What stands for a value in a quoted command, and a value.
const VALUES: [(&str, &str); 16] = [
    ("{command}", "stop"),
    ("{what}", "namespace"),
    ("{way}{nsid}", "-a ::1 -n nqn.a"),
    ("{way}", "-a ::1 -n nqn.a"),
    ("{at}", "-a ::1"),
    ("{COMMAND}", "serve-fuse"),
    ("{FOLDER_OPTION}", "--volume-dir"),
    ("{folder}", "/tmp"),
    ("{path}", "/"),
    ("{name}", "localhost"),
    ("{port}", "4420"),
    ("{ip}", "127.0.0.1"),
    ("{route}", "127.0.0.1 oif lo"),
    ("{subnqn}", "nqn.2026-11.org.example:a"),
    ("{nsid}", "1"),
    ("{interface}", "lo"),
];

/// How a command of the system that is quoted gets a test.
enum Step {
    /// It only looks: it is run here.
    Looks,
    /// The same, and it may fail: without a word where it finds nothing, or with these.
    Finds(&'static str),
    /// A file of this repository in which it is run, and words of it there.
    In(&'static str, &'static str),
    /// Why it is not run: no more than that the tool is there.
    Tool(&'static str),
}

use Step::{Finds, In, Looks, Tool};

/// Where steps are taken.
const HERE: &str = "tests/tests/next_steps.rs";

/// Where files are exported that are in use.
const IN_USE: &str = "tests/tests/overlaps.rs";

const STEPS: [(&str, Step); 85] = [
    (
        "systemctl daemon-reload",
        Tool("it has this machine's systemd read its units again"),
    ),
    (
        "systemctl restart capstan-target",
        Tool("it restarts a service of this machine"),
    ),
    (
        "mount -t capstan",
        In("tests/systemd/host-inside.sh", "mount -t capstan"),
    ),
    (
        "systemctl start capstan-target",
        Tool("it starts a service of this machine"),
    ),
    (
        "usermod -aG capstan USER",
        Tool("it changes a user of this machine"),
    ),
    (
        "mkdir --parents {}",
        In("tests/tests/exports.rs", "Command::new(\"mkdir\")"),
    ),
    (
        "systemctl disable --now nfs-server",
        Tool("it ends a service of this machine"),
    ),
    ("showmount -e", Tool("it asks the rpcbind of this machine")),
    (
        "btrfs device scan",
        In("tests/tests/mounts.rs", "&[\"device\", \"scan\"]"),
    ),
    (
        "btrfs filesystem show DEVICE",
        In("tests/tests/mounts.rs", "&[\"filesystem\", \"show\""),
    ),
    (
        "mount DEVICE FOLDER",
        In("tests/tests/mounts.rs", "tool(\"mount\", &[two"),
    ),
    (
        "chattr -{letters} {path}",
        In(HERE, "fn root_an_immutable_file"),
    ),
    (
        "cryptsetup open DEVICE NAME",
        In("tests/lab/cases/stacked-iwarp", "cryptsetup"),
    ),
    ("df {path}", Looks),
    ("dmesg", Looks),
    (
        "fallocate --keep-size --length {bytes} {name}",
        In(HERE, "fn root_space_is_reserved"),
    ),
    (
        "fdisk --list DEVICE",
        In(HERE, "fn what_shows_a_partition_table"),
    ),
    ("findmnt", Looks),
    ("findmnt -T {path}", Looks),
    ("findmnt -t btrfs", Finds("it says nothing of none")),
    ("getent ahosts {name}", Looks),
    ("ip -6 route", Looks),
    ("ip address", Looks),
    (
        "install -d -m 750 {folder}",
        In("tests/tests/state_folder.rs", "tool(\"install\""),
    ),
    (
        "install -d -m 750 -o USER {folder}",
        In("tests/tests/state_folder.rs", "tool(\"install\""),
    ),
    (
        "ip address add {ip}/PREFIX dev INTERFACE",
        In(HERE, "fn root_an_address_is_added"),
    ),
    ("ip address show dev {interface}", Looks),
    ("ip link", Looks),
    ("ip route get {route}", Looks),
    (
        "kill -CONT {pid}",
        In("tests/tests/open_disks.rs", "tool(\"kill\", &[\"-CONT\""),
    ),
    (
        "losetup --set-capacity {path}",
        In(HERE, "fn root_a_loop_device_takes_the_size_of_its_file"),
    ),
    (
        "losetup --sector-size {lba}",
        In("tests/tests/lba_of_devices.rs", "\"--sector-size\""),
    ),
    (
        "losetup -d /dev/{name}",
        In(HERE, "fn root_a_loop_device_is_detached"),
    ),
    ("lsattr {path}", In(HERE, "fn root_an_immutable_file")),
    ("losetup --list", Looks),
    ("lsblk", Looks),
    ("lsblk {path}", Finds("not a block device")),
    ("lsblk {device}", In(IN_USE, "fn root_a_file_in_use")),
    ("lslocks", Looks),
    (
        "mdadm --assemble --scan",
        In(HERE, "fn root_arrays_are_looked_for_on_a_disk_of_the_test"),
    ),
    ("mkfs.ext4 DEVICE", In("tests/tests/disk.rs", "mkfs.ext4")),
    (
        "mkdir -p {point}",
        In(HERE, "fn root_a_mount_point_is_made"),
    ),
    (
        "mount {point}",
        In(HERE, "fn root_a_file_system_of_fstab_is_mounted"),
    ),
    (
        "mount {device}pN FOLDER",
        In("tests/tests/signatures.rs", "mounts another partition"),
    ),
    (
        "modprobe fuse",
        Tool("it changes the kernel of the machine"),
    ),
    (
        "modprobe loop",
        Tool("it changes the kernel of the machine"),
    ),
    (
        "modprobe {fs_type}",
        Tool("it changes the kernel of the machine"),
    ),
    (
        "namei --long {}",
        In(HERE, "fn what_shows_where_links_lead"),
    ),
    ("nft list ruleset", Finds("not permitted")),
    ("nvme connect", In("tests/lab/guest", "nvme connect")),
    ("nvme gen-hostnqn", Looks),
    (
        "nvme resv-register",
        Tool("it needs a disk of the kernel's NVMe host, as the lab has"),
    ),
    (
        "nvme resv-release --rrela=1",
        Tool("it needs a disk of the kernel's NVMe host, as the lab has"),
    ),
    (
        "nvme resv-report",
        Tool("it needs a disk of the kernel's NVMe host, as the lab has"),
    ),
    (
        "nvmetcli save",
        Tool("it tells of the kernel's target on this machine"),
    ),
    (
        "partx --show DEVICE",
        In(HERE, "fn what_shows_a_partition_table"),
    ),
    ("ps -fp {pid}", In(HERE, "fn what_shows_a_partition_table")),
    (
        "prlimit --pid {} --fsize=unlimited",
        In("tests/tests/limits.rs", "--fsize=unlimited"),
    ),
    ("rdma link", Finds("NETLINK_RDMA")),
    ("rdma resource show cm_id", Finds("NETLINK_RDMA")),
    ("ss -ltn", Looks),
    ("ss -ltnp 'sport = :{port}'", Looks),
    ("ss -s", Looks),
    ("sudo", Finds("usage")),
    (
        "sudo chown -R {user} {folder}",
        In("tests/tests/state_folder.rs", "tool(\"chown\""),
    ),
    ("swapoff {path}", In(IN_USE, "runs(&refusal, \"swapoff \")")),
    ("swapon", Looks),
    ("swapon DEVICE", In(IN_USE, "tool(\"swapon\"")),
    (
        "sysctl -w kernel.io_uring_disabled=0",
        In(HERE, "fn root_a_setting_that_is_so_already_is"),
    ),
    (
        "sysctl -w net.ipv4.ip_unprivileged_port_start={port}",
        In(HERE, "fn root_a_low_port_is_opened"),
    ),
    ("sysctl fs.file-max", Looks),
    ("sysctl kernel.threads-max kernel.pid_max", Looks),
    (
        "truncate --size=%{lba_bytes} FILE",
        In("tests/tests/media.rs", "--size=%4096"),
    ),
    (
        "truncate --size={before_bytes} FILE",
        In("tests/tests/media.rs", "truncate --size="),
    ),
    (
        "truncate --size=SIZE {path}",
        In("config/tests/next_steps.rs", "what_a_message_says_to_run"),
    ),
    (
        "truncate -s 1G {path}",
        In("config/tests/next_steps.rs", "what_a_message_says_to_run"),
    ),
    ("ulimit -Hn {all}", In(HERE, "fn the_limit_of_descriptors")),
    ("ulimit -f unlimited", Looks),
    ("ulimit -l unlimited", Looks),
    (
        "mount {word}",
        In("tests/tests/exports.rs", "contains(\"`mount /\")"),
    ),
    (
        "umount {mount_point}",
        In(IN_USE, "runs(&refusal, \"umount \")"),
    ),
    ("uuidgen", Looks),
    (
        "vgchange --activate y",
        In("tests/lab/cases/stacked-iwarp", "vgchange -ay"),
    ),
    ("zpool import -d DEVICE", Tool("it needs ZFS in the kernel")),
    (
        "zramctl --size 1G {path}",
        Tool("it needs a device of the module zram"),
    ),
];

/// Every `.rs` file below a folder, but for the tests.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.ends_with("tests") {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of a file without comments and tests, and with its strings in one piece.
fn messages_of(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let code = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let mut joined = String::new();
    for line in code {
        match line.strip_suffix('\\') {
            _ if joined.ends_with('\u{0}') => {
                joined.pop();
                let line = line.trim_start();
                joined += line.strip_suffix('\\').unwrap_or(line);
                joined.push(if line.ends_with('\\') { '\u{0}' } else { '\n' });
            }
            Some(start) => {
                joined += start;
                joined.push('\u{0}');
            }
            None => {
                joined += line;
                joined.push('\n');
            }
        }
    }
    joined
}

/// What is quoted in the messages, with the file that says it.
fn quoted() -> BTreeMap<String, String> {
    let root = root();
    let mut found = BTreeMap::new();
    for name in CRATES {
        let mut files = Vec::new();
        sources(&root.join(name).join("src"), &mut files);
        for file in files {
            let shown = file.strip_prefix(&root).unwrap().display().to_string();
            for line in messages_of(&file).lines() {
                for quote in line.split('`').skip(1).step_by(2) {
                    found.insert(quote.to_owned(), shown.clone());
                }
            }
        }
    }
    found
}

/// Those of `quotes` that are a command of the system: not ours, no key, and more than a word.
fn is_of_the_system(quote: &str) -> bool {
    let first = quote.split(' ').next().unwrap_or_default();
    let is_name = first.starts_with(|c: char| c.is_ascii_lowercase())
        && first
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || b".46-".contains(&byte));
    is_name && !is_ours(quote) && !is_key(quote)
}

/// A line of a configuration.
fn is_key(quote: &str) -> bool {
    let key = quote.split_once(" = ").map(|(key, _)| key);
    key.is_some_and(|key| {
        key.bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
    })
}

fn is_ours(quote: &str) -> bool {
    quote.starts_with("capstan ") || quote.starts_with("capstan-target ")
}

/// A quoted command with a value for each that is left open.
fn with_values(quote: &str) -> String {
    VALUES.iter().fold(quote.to_owned(), |line, (name, value)| {
        line.replace(name, value)
    })
}

fn has_help(line: &str) -> bool {
    let mut words = line.split(' ').filter(|word| *word != "…");
    let mut command = Command::new(program(words.next().expect("a program")));
    let output = command
        .args(words)
        .arg("--help")
        .stdin(Stdio::null())
        .output();
    output.expect("it starts").status.success()
}

#[test]
fn what_is_quoted_of_the_two_programs_is_a_command_line_of_theirs() {
    let quotes = quoted();
    let ours: Vec<_> = quotes.iter().filter(|(quote, _)| is_ours(quote)).collect();
    assert!(ours.len() >= 12, "{ours:#?}");
    for (quote, file) in ours {
        assert!(has_help(&with_values(quote)), "{file} names `{quote}`");
    }
    assert!(!has_help("capstan attache") && !has_help("capstan list --no-such-option"));
}

#[test]
fn what_is_quoted_of_the_system_has_a_test() {
    let quotes = quoted();
    let words = [
        "attach",
        "list",
        "mount",
        "check",
        "doctor",
        "serve",
        "discover",
        "direct",
        "lba",
        "nsid",
        "uuid",
        "nguid",
        "pseudo",
        "listeners",
        "user",
        "users",
    ];
    let mut found: BTreeMap<&str, &str> = quotes
        .iter()
        .filter(|(quote, _)| is_of_the_system(quote) && !words.contains(&quote.as_str()))
        // The limits of the shell are looked at.
        .filter(|(quote, _)| !(quote.starts_with("ulimit") && quote.len() == "ulimit -n".len()))
        .filter(|(quote, _)| *quote != "ulimit -Hn")
        .filter(|(quote, _)| !["addresses", "clients", "transports"].contains(&quote.as_str()))
        .map(|(quote, file)| (quote.as_str(), file.as_str()))
        .collect();
    for (quote, step) in STEPS {
        let file = found.remove(quote);
        assert!(file.is_some(), "no message names `{quote}` any more");
        let tool = quote.split(' ').next().expect("a word");
        match step {
            In(path, words) => {
                let path = root().join(path);
                let mut files = Vec::new();
                if path.is_dir() {
                    files.extend(
                        fs::read_dir(path)
                            .unwrap()
                            .map(|entry| entry.unwrap().path()),
                    );
                } else {
                    files.push(path);
                }
                let mut texts = files
                    .iter()
                    .filter_map(|file| fs::read_to_string(file).ok());
                assert!(
                    texts.any(|text| text.contains(words)),
                    "`{quote}`: no {words}"
                );
            }
            Looks if tool == "ulimit" || has_tools(quote, &[tool]) => {
                let output = shell(&with_values(quote));
                let said = String::from_utf8_lossy(&output.stderr);
                let is_allowed = said.contains("not permitted") || said.contains("denied");
                assert!(output.status.success() || is_allowed, "`{quote}`: {said}");
            }
            Finds(words) if has_tools(quote, &[tool]) => {
                let output = shell(&with_values(quote));
                let said = String::from_utf8_lossy(&output.stderr);
                let is_all = said.trim().is_empty() || said.contains(words);
                assert!(output.status.success() || is_all, "`{quote}`: {said}");
            }
            Looks | Finds(_) => {}
            Tool(why) => {
                if has_tools(quote, &[tool]) {
                    eprintln!("not run, but {tool} is there: `{quote}`: {why}");
                }
            }
        }
    }
    assert_eq!(found, BTreeMap::new(), "quoted in messages, and in no test");
}

/// The keys of the tables in `docs/configuration.md`, which another test compares with what is
/// read.
fn keys() -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("docs/configuration.md")).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| Some(row.split_once('`')?.0.to_owned()))
        .collect()
}

#[test]
fn keys_that_messages_name_are_keys_of_the_configuration() {
    let mut keys = keys();
    // A list of tables, which have a table of their own there.
    keys.insert("clients".to_owned());
    let mut seen = 0;
    for (quote, file) in quoted() {
        if is_key(&quote) {
            let key = quote.split(' ').next().expect("a key");
            assert!(keys.contains(key), "{file} names `{quote}`");
            seen += 1;
        }
    }
    for name in CRATES {
        let mut files = Vec::new();
        sources(&root().join(name).join("src"), &mut files);
        for file in files {
            let messages = messages_of(&file);
            let strings = messages.split('"').skip(1).step_by(2);
            for word in strings.flat_map(|text| text.split([' ', ',', ';', ':', '(', ')', '`'])) {
                let key = word
                    .strip_prefix("target.")
                    .or_else(|| word.strip_prefix("queues."));
                if let Some(key) = key.map(|key| key.trim_end_matches(['.', '\\']))
                    && key
                        .bytes()
                        .all(|byte| byte.is_ascii_lowercase() || byte == b'_')
                    && !key.is_empty()
                {
                    assert!(keys.contains(key), "{} names {word}", file.display());
                    seen += 1;
                }
            }
        }
    }
    assert!(seen >= 20, "{seen}");
}

/// What `capstan` alone has of the library, in its `internals`.
const OF_CAPSTAN: [&str; 5] = [
    "initiator/src/claim.rs",
    "initiator/src/claim/",
    "initiator/src/front_ends/disk/",
    "initiator/src/health.rs",
    "initiator/src/way.rs",
];

/// A program that uses it has other options, or none.
#[test]
fn the_library_names_no_option_and_no_command_of_capstan() {
    let root = root();
    let mut files = Vec::new();
    sources(&root.join("initiator/src"), &mut files);
    let shown = |file: &Path| file.strip_prefix(&root).unwrap().display().to_string();
    files.retain(|file| !OF_CAPSTAN.iter().any(|of| shown(file).starts_with(of)));
    assert!(files.len() > 40, "{files:?}");
    let mut found = Vec::new();
    for file in files {
        for line in messages_of(&file).lines() {
            let strings = line.split('"').skip(1).step_by(2);
            let named = strings.filter(|text| {
                let words = text.split([' ', '(', '`', ',', ';', ':']);
                let mut options = words.filter(|word| {
                    word.strip_prefix("--")
                        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()))
                });
                options.next().is_some() || text.contains("`capstan ") || text.contains("`-")
            });
            found.extend(named.map(|text| format!("{}: {text}", shown(&file))));
        }
    }
    assert_eq!(found, [""; 0], "of capstan alone");
}

/// Options of other programs that messages name.
const FOREIGN_OPTIONS: [&str; 33] = [
    "--now",
    "--parents",
    "--detach",
    "--sector-size",
    "--fsize",
    "--pid",
    "--activate",
    "--add",
    "--assemble",
    "--cpus",
    "--device",
    "--help",
    "--json",
    "--keep-size",
    "--length",
    "--list",
    "--long",
    "--memory",
    "--mount",
    "--no-act",
    "--pids-limit",
    "--probe",
    "--raw",
    "--rrela",
    "--scan",
    "--set-capacity",
    "--show",
    "--size",
    "--tls",
    "--sparse",
    "--subsystem-match",
    "--target",
    "--version",
];

#[test]
fn options_that_messages_name_are_options() {
    let mut known: BTreeSet<String> = FOREIGN_OPTIONS.iter().map(|o| (*o).to_owned()).collect();
    let options = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let options = words.filter(|word| word.starts_with("--") && word.len() > 3);
        options
            .map(|word| word.trim_end_matches('-').to_owned())
            .collect()
    };
    for name in ["capstan", "capstan-target"] {
        let help = |args: &[&str]| {
            let output = Command::new(program(name))
                .args(args)
                .arg("--help")
                .output();
            String::from_utf8(output.expect("it starts").stdout).expect("text")
        };
        let all = help(&[]);
        let (_, commands) = all.split_once("Commands:").expect("commands");
        let (commands, _) = commands.split_once("Options:").expect("options");
        known.extend(options(&all));
        for line in commands.lines().filter_map(|line| line.strip_prefix("  ")) {
            if let Some(command) = line.split(' ').next().filter(|word| !word.is_empty()) {
                let of_it = help(&[command]);
                known.extend(options(&of_it));
                // Commands of a command, as of `namespace`.
                let inner = of_it.split_once("Commands:").map_or("", |(_, all)| all);
                let inner = inner.split_once("Options:").map_or(inner, |(all, _)| all);
                let lines = inner.lines().filter_map(|line| line.strip_prefix("  "));
                for word in lines.filter_map(|line| line.split(' ').next()) {
                    if !word.is_empty() {
                        known.extend(options(&help(&[command, word])));
                    }
                }
            }
        }
    }
    known.insert("--volume-dir".to_owned());
    let mut found = BTreeMap::new();
    for name in CRATES {
        let mut files = Vec::new();
        sources(&root().join(name).join("src"), &mut files);
        for file in files {
            for line in messages_of(&file).lines() {
                // A string without a space is handed to a tool, or compared.
                let strings = line.split('"').skip(1).step_by(2);
                for text in strings.filter(|text| text.contains(' ')) {
                    let strange = options(text).into_iter().filter(|o| !known.contains(o));
                    found.extend(strange.map(|option| (option, file.display().to_string())));
                }
            }
        }
    }
    assert_eq!(found, BTreeMap::new(), "options of no program");
}
