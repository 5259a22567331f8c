//! `mount.capstan` and `umount.capstan`: this program as mount(8) and umount(8) call it, for
//! fstab(5) and mount units. The words of a helper become those of `capstan mount` and `umount`.

use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Error, Result, anyhow, bail};
use capstan_initiator::address::check_traddr;
use capstan_nvme_proto::text::Shown;
use nix::sched::{CloneFlags, setns};

use super::by_name::{VolumeOptions, is_flag, nearest};
use super::mount_options::{check_options, kind};
use super::values::parse_nqn;
use super::{WRONG_WORDS, disk};

/// What both are, as mount(8) names the type of a file system.
pub(super) const TYPE: &str = "capstan";
/// The option by which umount(8) calls a helper though the file system is of another type.
pub(super) const UMOUNT_HELPER: &str = "helper=capstan";
/// Where mount(8) and umount(8) look for helpers.
const HELPERS: [&str; 3] = ["/sbin", "/sbin/fs.d", "/sbin/fs"];

/// Exit statuses of mount(8).
const INVOCATION: u8 = 1;
const SYSTEM: u8 = 2;
const INTERRUPTED: u8 = 8;
const FAILED: u8 = 32;

/// Options of the command line that are no options of a mount: the source has them, mount(8) has a
/// way of its own, or nothing there reads what they ask for.
const ELSEWHERE: [(&str, &str); 3] = [
    (
        "traddr",
        "the address stands in the source, NQN@ADDRESS[:PORT]",
    ),
    ("trsvcid", "the port stands in the source, NQN@ADDRESS:PORT"),
    (
        "nqn",
        "the subsystem stands in the source, NQN@ADDRESS[:PORT]",
    ),
];
/// Options that mount(8) has heeded before it calls a helper (mount(8), fstab(5)).
const OF_MOUNT: [&str; 17] = [
    "rw", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "nousers",
    "owner", "noowner", "group", "nogroup", "comment", "helper", "uhelper",
];

/// Which helper this program is called as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Helper {
    Mount,
    Umount,
}

impl Helper {
    /// The one that the first of `words` names.
    pub(super) fn called(words: &[OsString]) -> Option<Self> {
        let name = Path::new(words.first()?).file_name()?.to_str()?;
        match name {
            "mount.capstan" => Some(Self::Mount),
            "umount.capstan" => Some(Self::Umount),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Mount => "mount.capstan",
            Self::Umount => "umount.capstan",
        }
    }

    /// Does what mount(8) or umount(8) asks: their exit status.
    pub(super) fn run(self, words: &[OsString]) -> u8 {
        let asked = text_of(words).and_then(|words| Asked::parse(self, &words));
        let done = asked.and_then(|asked| match self {
            Self::Mount => mount(&asked),
            Self::Umount => umount(&asked),
        });
        done.unwrap_or_else(|error| {
            let text = format!("{error:#}");
            // There is nowhere left to tell that stderr is gone.
            let _ = writeln!(std::io::stderr(), "{}: {}", self.name(), Shown(&text));
            INVOCATION
        })
    }
}

/// Whether umount(8) finds a helper for what is mounted with `helper=capstan`.
pub(super) fn has_umount_helper() -> bool {
    let mut paths = HELPERS
        .iter()
        .map(|folder| Path::new(folder).join("umount.capstan"));
    paths.any(|path| path.exists())
}

fn text_of(words: &[OsString]) -> Result<Vec<String>> {
    let texts = words.iter().skip(1).map(|word| {
        let text = word.to_str().map(str::to_owned);
        text.with_context(|| format!("{word:?} is not UTF-8, expected text"))
    });
    texts.collect()
}

/// The words of a helper (mount(8), EXTERNAL HELPERS).
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    places: Vec<String>,
    options: Vec<String>,
    fs_type: Option<String>,
    namespace: Option<String>,
    fake: bool,
    verbose: bool,
    /// `-l`, `-f` and `-r` of umount(8), which its own code does.
    by_kernel: Vec<String>,
}

impl Asked {
    fn parse(helper: Helper, words: &[String]) -> Result<Self> {
        let mut asked = Self::default();
        let mut words = words.iter();
        let mut only_places = false;
        while let Some(word) = words.next() {
            let letters = match word.strip_prefix('-') {
                Some(letters) if !only_places && !letters.is_empty() => letters,
                _ => {
                    asked.places.push(word.clone());
                    continue;
                }
            };
            if letters == "-" {
                only_places = true;
                continue;
            }
            for (at, letter) in letters.char_indices() {
                let rest = &letters[at + letter.len_utf8()..];
                let mut value = |what: &str| {
                    let value = match rest {
                        "" => words.next().cloned(),
                        rest => Some(rest.to_owned()),
                    };
                    value.with_context(|| format!("-{letter} is last, expected {what} behind it"))
                };
                match (letter, helper) {
                    ('o', Helper::Mount) => {
                        let given = value("options")?;
                        asked.options.extend(split(&given).map(str::to_owned));
                        break;
                    }
                    ('t', _) => {
                        asked.fs_type = Some(value("a type")?);
                        break;
                    }
                    ('N', _) => {
                        asked.namespace = Some(value("a mount namespace")?);
                        break;
                    }
                    ('f', Helper::Mount) => asked.fake = true,
                    ('f' | 'l' | 'r', Helper::Umount) => {
                        asked.by_kernel.push(format!("-{letter}"));
                    }
                    ('v', _) => asked.verbose = true,
                    // Unknown options are the file system's matter, and there is no mtab.
                    ('s' | 'n', _) => {}
                    _ => bail!("-{letter} is unknown, expected {}", helper.usage()),
                }
            }
        }
        Ok(asked)
    }
}

impl Helper {
    fn usage(self) -> &'static str {
        match self {
            Self::Mount => {
                "mount.capstan NQN@ADDRESS[:PORT] FOLDER [-sfnv] [-N NAMESPACE] [-o OPTIONS] [-t TYPE]; mount(8) calls it with \
                 that for `mount -t capstan`"
            }
            Self::Umount => {
                "umount.capstan FOLDER [-flnrv] [-N NAMESPACE] [-t TYPE]; umount(8) calls it with that for what \
                 mount.capstan has mounted"
            }
        }
    }
}

/// Options of a list, of which one in double quotes may have commas in it, as SELinux contexts do.
fn split(options: &str) -> impl Iterator<Item = &str> {
    let mut quoted = false;
    let parts = options.split(move |c| {
        quoted ^= c == '"';
        c == ',' && !quoted
    });
    parts.filter(|option| !option.is_empty())
}

fn mount(asked: &Asked) -> Result<u8> {
    let [source, folder] = &asked.places[..] else {
        bail!(
            "{} were given, expected a source and a folder: {}",
            count(&asked.places),
            Helper::Mount.usage()
        );
    };
    let words = command_line(&Source::parse(source)?, folder, asked)?;
    if asked.fake {
        return Ok(0);
    }
    if !nix::unistd::geteuid().is_root() {
        bail!(
            "mounting a volume needs root, and user {} runs this: mount it as root (`user` and `users` in /etc/fstab give \
             others no right to it)",
            nix::unistd::geteuid()
        );
    }
    enter(asked.namespace.as_deref())?;
    Ok(match super::run(&words) {
        0 => 0,
        WRONG_WORDS => INVOCATION,
        129.. => INTERRUPTED,
        _ => FAILED,
    })
}

fn count(places: &[String]) -> String {
    match places {
        [] => "no words".to_owned(),
        places => format!("{} words ({})", places.len(), places.join(" ")),
    }
}

/// The words of `capstan mount` that do what `asked` says.
fn command_line(source: &Source, folder: &str, asked: &Asked) -> Result<Vec<OsString>> {
    let known = VolumeOptions::new();
    let mut words = vec!["capstan".to_owned()];
    words.extend(asked.verbose.then(|| "--verbose".to_owned()));
    words.extend(["mount".to_owned(), "--as-helper".to_owned()]);
    words.push(format!("--nqn={}", source.nqn));
    words.push(format!("--traddr={}", source.address));
    words.extend(source.port.map(|port| format!("--trsvcid={port}")));
    let mut fs_type = match &asked.fs_type {
        Some(given) => type_of(given)?,
        None => None,
    };
    let (mut rest, mut read_only) = (Vec::new(), false);
    for option in &asked.options {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (&**option, None),
        };
        match (name, value) {
            ("ro" | "read-only" | "read_only", None) => read_only = true,
            ("rw", None) => read_only = false,
            ("fstype", Some(value)) => fs_type = Some(checked(name, value, kind)?),
            ("part", Some(value)) => {
                let number = value.parse().ok().filter(|number: &u32| *number > 0);
                let expected = "expected the number of a partition, from 1";
                let number =
                    number.with_context(|| format!("-o {name} is {value:?}, {expected}"))?;
                words.push(format!("--part={number}"));
            }
            ("fstype" | "part", None) => bail!("-o {name} has no value, expected {name}=VALUE"),
            _ if OF_MOUNT.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            _ => match volume_word(&known, name, value)? {
                Some(word) => words.push(word),
                None => rest.push(&**option),
            },
        }
    }
    words.extend(read_only.then(|| "--read-only".to_owned()));
    words.extend(fs_type.map(|fs_type| format!("--type={fs_type}")));
    if !rest.is_empty() {
        let rest = rest.join(",");
        check_options(&rest, "-o")?;
        words.push(format!("--options={rest}"));
    }
    words.extend(["--".to_owned(), folder.to_owned()]);
    Ok(words.into_iter().map(OsString::from).collect())
}

/// The kind of file system in `capstan.KIND`.
fn type_of(given: &str) -> Result<Option<String>> {
    let kind_of = |kind_of: &str| checked("type", kind_of, kind);
    match given.strip_prefix(TYPE) {
        Some("") => Ok(None),
        Some(subtype) if subtype.starts_with('.') => kind_of(&subtype[1..]).map(Some),
        _ => bail!("-t is {given:?}, expected capstan, or capstan.TYPE as in capstan.ext4"),
    }
}

fn checked(
    name: &str,
    value: &str,
    check: impl Fn(&str) -> Result<String, String>,
) -> Result<String> {
    check(value).map_err(|why| anyhow!("-o {name} is {value:?}: {why}"))
}

/// The word of the command line for an option of a volume; `None` of one that is the file system's.
fn volume_word(known: &VolumeOptions, name: &str, value: Option<&str>) -> Result<Option<String>> {
    let Some(arg) = known.find(name) else {
        return Ok(None);
    };
    let long = arg.get_long().unwrap_or_default();
    if let Some((_, where_it_stands)) = ELSEWHERE.iter().find(|(option, _)| *option == long) {
        bail!("-o has {name:?}: {where_it_stands}; leave it out");
    }
    match (is_flag(arg), value) {
        (true, None) => Ok(Some(format!("--{long}"))),
        (true, Some(value)) => bail!("-o {name} is {value:?}, expected {name} without a value"),
        (false, None) => bail!("-o {name} has no value, expected {name}=VALUE"),
        (false, Some(value)) => {
            let word = known.word(arg, value);
            word.map(Some)
                .map_err(|expected| anyhow!("-o {name} is {value:?}, {expected}"))
        }
    }
}

/// An option that the file system was given, and that is perhaps one of a volume mistyped.
pub(super) fn slip_in(options: &str) -> Option<String> {
    let known = VolumeOptions::new();
    let names: Vec<_> = known.names().chain(["nsid", "fstype", "part"]).collect();
    let given = split(options).map(|option| option.split('=').next().unwrap_or_default());
    let mut slips = given.filter_map(|given| Some((given, nearest(given, names.iter().copied())?)));
    let (given, meant) = slips.next()?;
    Some(format!(
        "the option {given:?} is none of capstan, and was given to the file system; did you mean {meant}?"
    ))
}

/// What is mounted: the first field of fstab(5).
#[derive(Debug, PartialEq, Eq)]
struct Source {
    nqn: String,
    address: String,
    port: Option<u16>,
}

impl Source {
    fn parse(text: &str) -> Result<Self> {
        let expected = "expected NQN@ADDRESS[:PORT], as nqn.2026-11.org.example:disk@192.0.2.10 or \
                        nqn.2026-11.org.example:disk@[2001:db8::1]:4420";
        let wrong = |what: String| anyhow!("the source is {text:?}: {what}; {expected}");
        let Some((nqn, at)) = text.rsplit_once('@') else {
            return Err(wrong("it has no @ before an address".to_owned()));
        };
        let nqn = parse_nqn(nqn).map_err(|why| wrong(format!("the NQN is {nqn:?}: {why}")))?;
        let (address, port) = match at.strip_prefix('[') {
            Some(rest) => {
                let (address, behind) = rest
                    .split_once(']')
                    .ok_or_else(|| wrong("the bracket is not closed".to_owned()))?;
                let port = match behind {
                    "" => None,
                    behind => Some(behind.strip_prefix(':').ok_or_else(|| {
                        wrong(format!(
                            "behind the address there is {behind:?}, which is no port"
                        ))
                    })?),
                };
                (address, port)
            }
            None => match at.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(wrong("an IPv6 address stands in brackets".to_owned()));
                }
                Some((address, port)) => (address, Some(port)),
                None => (at, None),
            },
        };
        check_traddr(address).map_err(|why| wrong(format!("the address is {address:?}: {why}")))?;
        let port = port.map(|port| {
            let number = port.parse().ok().filter(|number| *number != 0);
            number.ok_or_else(|| wrong(format!("the port is {port:?}, expected 1 to 65535")))
        });
        Ok(Self {
            nqn,
            address: address.to_owned(),
            port: port.transpose()?,
        })
    }
}

/// Goes into the mount namespace that -N names, by a path or the number of a process.
fn enter(namespace: Option<&str>) -> Result<()> {
    let Some(namespace) = namespace else {
        return Ok(());
    };
    let path = match namespace.parse::<u32>() {
        Ok(pid) => PathBuf::from(format!("/proc/{pid}/ns/mnt")),
        Err(_) => PathBuf::from(namespace),
    };
    let entered = File::open(&path)
        .map_err(Error::from)
        .and_then(|file| Ok(setns(file, CloneFlags::CLONE_NEWNS)?));
    entered.with_context(|| format!("-N is {namespace:?}, expected a mount namespace"))
}

fn umount(asked: &Asked) -> Result<u8> {
    let [folder] = &asked.places[..] else {
        let places = count(&asked.places);
        bail!(
            "{places} were given, expected a folder: {}",
            Helper::Umount.usage()
        );
    };
    enter(asked.namespace.as_deref())?;
    // What the kernel does by itself, and what is no volume that is known here.
    if !asked.by_kernel.is_empty() || disk::find_device(Path::new(folder)).is_err() {
        let mut umount = Command::new("umount");
        umount
            .arg("-i")
            .args(&asked.by_kernel)
            .arg("--")
            .arg(folder);
        let status = umount.status().context("running umount")?;
        return Ok(status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(SYSTEM));
    }
    let words = ["capstan", "umount", "--", folder].map(OsString::from);
    Ok(match super::run(&words) {
        0 => 0,
        129.. => INTERRUPTED,
        _ => FAILED,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Asked {
        let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
        Asked::parse(Helper::Mount, &words).unwrap()
    }

    /// The command line for the options of a mount.
    fn line(options: &str) -> Result<String> {
        let source = Source::parse("nqn.2026-11.org.example:disk@192.0.2.1").unwrap();
        let asked = asked(&format!("source /mnt -o {options}"));
        let words = command_line(&source, "/mnt", &asked)?;
        let words: Vec<_> = words.iter().map(|word| word.to_str().unwrap()).collect();
        Ok(words.join(" "))
    }

    const START: &str =
        "capstan mount --as-helper --nqn=nqn.2026-11.org.example:disk --traddr=192.0.2.1";

    #[test]
    fn a_source_is_a_subsystem_at_an_address() {
        let of = |text: &str| Source::parse(text);
        for (at, address, port) in [
            ("192.0.2.1", "192.0.2.1", None),
            ("192.0.2.1:4421", "192.0.2.1", Some(4421)),
            ("[2001:db8::1]", "2001:db8::1", None),
            ("[2001:db8::1]:4421", "2001:db8::1", Some(4421)),
            ("storage.example:4421", "storage.example", Some(4421)),
        ] {
            // A name may have an @ in it.
            for nqn in [
                "nqn.2026-11.org.example:disk",
                "nqn.2026-11.org.example:a@b",
            ] {
                let source = of(&format!("{nqn}@{at}")).unwrap();
                let expected = (nqn, address, port);
                assert_eq!((&*source.nqn, &*source.address, source.port), expected);
            }
        }
        for (text, words) in [
            ("nqn.2026-11.org.example:disk", "no @"),
            ("@192.0.2.1", "the NQN is \"\""),
            ("nqn.2026-11.org.example:disk@2001:db8::1", "in brackets"),
            ("nqn.2026-11.org.example:disk@[2001:db8::1", "not closed"),
            ("nqn.2026-11.org.example:disk@[2001:db8::1]x", "no port"),
            (
                "nqn.2026-11.org.example:disk@192.0.2.1:0",
                "the port is \"0\"",
            ),
            (
                "nqn.2026-11.org.example:disk@192.0.2.1:70000",
                "expected 1 to 65535",
            ),
            ("nqn.2026-11.org.example:disk@", "the address is \"\""),
        ] {
            let error = of(text).unwrap_err().to_string();
            assert!(
                error.contains(words) && error.contains("NQN@ADDRESS"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn options_of_mount_of_capstan_and_of_the_file_system_are_told_apart() {
        let given = "rw,noexec,nosuid,_netdev,nofail,user,x-systemd.automount,nsid=2,transport=tcp,commit=30,part=1,\
                     io_timeout=9,data-digest,fstype=ext4,hostnqn=nqn.2026-11.org.example:h";
        assert_eq!(
            line(given).unwrap(),
            format!(
                "{START} --namespace-id=2 --transport=tcp --part=1 --io-timeout=9 --data-digest \
                 --hostnqn=nqn.2026-11.org.example:h --type=ext4 --options=noexec,nosuid,commit=30 -- /mnt"
            )
        );
        assert_eq!(line("rw").unwrap(), format!("{START} -- /mnt"));
        assert_eq!(
            line("rw,ro").unwrap(),
            format!("{START} --read-only -- /mnt")
        );
        let context = "context=\"system_u:object_r:tmp_t:s0:c127,c456\"";
        let of_context = line(context).unwrap();
        assert_eq!(of_context, format!("{START} --options={context} -- /mnt"));
    }

    #[test]
    fn an_option_that_is_wrong_is_named_with_what_is_allowed() {
        for (options, expected) in [
            ("nsid=x", "-o nsid is \"x\", expected 1 to 4294967294"),
            (
                "transport=udp",
                "-o transport is \"udp\", expected auto, rdma or tcp",
            ),
            ("nsid", "-o nsid has no value, expected nsid=VALUE"),
            (
                "data_digest=1",
                "-o data_digest is \"1\", expected data_digest without a value",
            ),
            (
                "part=0",
                "-o part is \"0\", expected the number of a partition, from 1",
            ),
            (
                "loop",
                "-o has \"loop\", expected options of the file system",
            ),
        ] {
            let error = line(options).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let error = line("traddr=::1").unwrap_err().to_string();
        assert!(error.contains("stands in the source"), "{error}");
        let slip = slip_in("noatime,nsdi=2").unwrap();
        assert!(slip.ends_with("did you mean nsid?"), "{slip}");
        for of_file_system in [
            "noatime",
            "data=ordered",
            "errors=remount-ro",
            "commit=3",
            "barrier",
            "nodiscard",
        ] {
            assert_eq!(slip_in(of_file_system), None);
        }
    }

    #[test]
    fn words_are_those_of_mount() {
        let given =
            asked("a@b /mnt -f -v -n -s -o ro,nsid=2 -o x-y -t capstan.ext4 -N /proc/1/ns/mnt");
        assert_eq!(given.places, ["a@b", "/mnt"]);
        assert_eq!(given.options, ["ro", "nsid=2", "x-y"]);
        assert!(given.fake && given.verbose);
        assert_eq!(type_of(&given.fs_type.unwrap()).unwrap().unwrap(), "ext4");
        assert!(type_of("ext4").is_err());
        assert_eq!(asked("a@b /mnt -fvo ro").options, ["ro"]);
        let words = ["a@b", "/mnt", "-z"].map(str::to_owned);
        let error = Asked::parse(Helper::Mount, &words).unwrap_err();
        assert!(error.to_string().starts_with("-z is unknown"), "{error}");
        let words = ["/mnt", "-l", "-f"].map(str::to_owned);
        let given = Asked::parse(Helper::Umount, &words).unwrap();
        assert_eq!(given.by_kernel, ["-l", "-f"]);
    }

    #[test]
    fn a_helper_is_known_by_its_name() {
        let called = |name: &str| Helper::called(&[OsString::from(name)]);
        assert_eq!(called("/sbin/mount.capstan"), Some(Helper::Mount));
        assert_eq!(called("umount.capstan"), Some(Helper::Umount));
        assert_eq!(called("@capstan"), None);
        assert_eq!(called("/usr/bin/capstan"), None);
    }
}
