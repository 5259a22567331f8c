//! The files of one configuration: `NAME.toml`, and those of the folder `NAME.d` beside it, by
//! their names.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use crate::{At, CONFIG_BYTES_MAX, ConfigError, limits, machine};

/// A file of a configuration, and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenFile {
    /// Where it was read from; none where it is in no file.
    pub path: Option<PathBuf>,
    /// What it says.
    pub text: String,
}

/// The texts of some files, one behind the other, so that a place in one of them is a number.
pub(crate) struct Texts {
    whole: String,
    /// With its name for messages, where there are several files.
    starts: Vec<(usize, Option<String>)>,
}

impl Texts {
    pub(crate) fn of(files: &[WrittenFile]) -> Self {
        let mut texts = Self {
            whole: String::new(),
            starts: Vec::new(),
        };
        for file in files {
            let path = file.path.as_ref().filter(|_| files.len() > 1);
            let name = path.map(|path| path.display().to_string());
            texts.starts.push((texts.whole.len(), name));
            texts.whole.push_str(&file.text);
            texts.whole.push('\n');
        }
        texts
    }

    pub(crate) fn of_one(text: &str) -> Self {
        Self {
            whole: text.to_owned(),
            starts: vec![(0, None)],
        }
    }

    /// The text of each file behind as many blank lines as there are bytes before it, so that its
    /// places are those of the whole.
    pub(crate) fn padded(&self) -> impl Iterator<Item = String> {
        let ends = self.starts.iter().skip(1).map(|(start, _)| *start);
        let ends = ends.chain([self.whole.len()]);
        self.starts.iter().zip(ends).map(|((start, _), end)| {
            let text = self.whole.get(*start..end).unwrap_or_default();
            // A mark of the byte order is one at the head only.
            let unmarked = text.strip_prefix('\u{feff}').unwrap_or(text);
            "\n".repeat(end - unmarked.len()) + unmarked
        })
    }

    pub(crate) fn get(&self, span: Range<usize>) -> Option<&str> {
        self.whole.get(span)
    }

    /// Where a field stands in its file.
    pub(crate) fn at(&self, field: impl Into<String>, span: Option<Range<usize>>) -> At {
        let field = field.into();
        let Some(place) = span.map(|span| span.start) else {
            return At::of(field);
        };
        let place = place.min(self.whole.len());
        let mut files = self.starts.iter().rev();
        let (start, name) = files
            .find(|(start, _)| *start <= place)
            .cloned()
            .unwrap_or_default();
        let before = self.whole.as_bytes().get(start..place).unwrap_or_default();
        At {
            field,
            line: Some(before.iter().filter(|byte| **byte == b'\n').count() + 1),
            file: name.map(Into::into),
        }
    }
}

/// Reads the file at `path` and those in the folder beside it; `-` is stdin, which has none.
///
/// # Errors
/// One cannot be read, or there are too many; there is none.
pub(crate) fn read(path: &Path) -> Result<Vec<WrittenFile>, ConfigError> {
    let beside = folder_of(path).map_or_else(|| Ok(Vec::new()), |folder| in_folder(&folder))?;
    let own = match read_text(path) {
        // The folder has it all.
        Err(ConfigError::Read { error, .. })
            if error.kind() == ErrorKind::NotFound && !beside.is_empty() && !path.is_symlink() =>
        {
            None
        }
        read => Some(read?),
    };
    let mut files = Vec::new();
    let own = own.map(|text| (path.to_owned(), text));
    let read = beside
        .into_iter()
        .map(|path| read_text(&path).map(|text| (path, text)));
    for read in own.map(Ok).into_iter().chain(read) {
        let (path, text) = read?;
        let path = Some(path);
        files.push(WrittenFile { path, text });
    }
    let bytes: usize = files.iter().map(|file| file.text.len()).sum();
    if bytes as u64 > CONFIG_BYTES_MAX {
        let path = folder_of(path).unwrap_or_else(|| path.to_owned());
        return Err(ConfigError::TooLarge { path });
    }
    Ok(files)
}

/// The folder with more files of a configuration: `target.d` beside `target.toml`.
fn folder_of(path: &Path) -> Option<PathBuf> {
    let is_toml = path
        .extension()
        .is_some_and(|extension| extension == "toml");
    is_toml.then(|| path.with_extension("d"))
}

/// Its configuration files, by their names; none where there is no such folder. Names that begin
/// with a dot are those of editors.
fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let cannot_read = |error| ConfigError::Read {
        path: folder.to_owned(),
        error,
    };
    let entries = match fs::read_dir(folder) {
        Err(_) if !folder.exists() => return Ok(Vec::new()),
        entries => entries.map_err(cannot_read)?,
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(cannot_read)?.path();
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden
            && path
                .extension()
                .is_some_and(|extension| extension == "toml")
        {
            paths.push(path);
        }
        if paths.len() > limits::CONFIG_FILES_MAX {
            return Err(ConfigError::TooManyFiles {
                folder: folder.to_owned(),
            });
        }
    }
    paths.sort();
    Ok(paths)
}

fn read_text(path: &Path) -> Result<String, ConfigError> {
    let read = |error| ConfigError::Read {
        path: path.to_owned(),
        error,
    };
    let input: Box<dyn Read> = if path.as_os_str() == "-" {
        Box::new(io::stdin())
    } else {
        Box::new(open(path).map_err(read)?)
    };
    let mut bytes = Vec::new();
    input
        .take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(read)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(ConfigError::TooLarge {
            path: path.to_owned(),
        });
    }
    String::from_utf8(bytes).map_err(|error| ConfigError::NotUtf8 {
        path: path.to_owned(),
        at: error.utf8_error().valid_up_to(),
    })
}

/// Where a process finds the descriptors that it was started with: a pipe there has a process that
/// writes, as `-` has.
const HANDED_OVER: [&str; 3] = ["/dev/stdin", "/dev/fd", "/proc/self/fd"];

/// Opens what can be read at once: a named pipe would keep the process until another one writes,
/// and a device may do something when it is opened.
fn open(path: &Path) -> io::Result<File> {
    if HANDED_OVER.iter().any(|place| path.starts_with(place)) {
        return File::open(path);
    }
    let file_type = path.metadata()?.file_type();
    // A folder is refused by the kernel.
    if !(file_type.is_file() || file_type.is_dir()) {
        let found = machine::volume::type_name(file_type);
        return Err(io::Error::other(format!("it is a {found}")));
    }
    // It may be another one by now.
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use crate::{Config, ConfigError, EntryValue, Nqn, Written};

    const MAIN: &str =
        "# Of all.\n[[listener]]\naddress = \"127.0.0.1\"\n\n[target]\nspin = \"10us\"\n";
    const DISK: &str = "[[subsystem]]\nnqn = \"nqn.2026-11.org.example:disk\"\nallowed_hosts = []\n\
                        [[subsystem.namespace]]\nram = \"1MiB\"\n";

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("target.d")).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn read(folder: &tempfile::TempDir) -> Result<Config, ConfigError> {
        Config::from_file(&folder.path().join("target.toml"))
    }

    fn wrong(folder: &tempfile::TempDir) -> String {
        let text = read(folder).unwrap_err().to_string();
        text.replace(folder.path().to_str().unwrap(), "FOLDER")
    }

    #[test]
    fn files_of_the_folder_are_read_by_their_names_behind_the_file() {
        let other = DISK.replace(":disk", ":other");
        let files = [
            ("target.toml", MAIN),
            ("target.d/20-disk.toml", DISK),
            ("target.d/10-other.toml", other.as_str()),
            ("target.d/more.toml", "[target]\nlog = \"debug\""),
            ("target.d/.30-disk.toml.swp", "no"),
            ("target.d/.hidden.toml", "no"),
            ("target.d/README", "no"),
        ];
        let config = read(&folder(&files)).unwrap();
        let nqns: Vec<_> = config.subsystems.iter().map(|of| of.nqn.as_str()).collect();
        assert_eq!(
            nqns,
            [
                "nqn.2026-11.org.example:other",
                "nqn.2026-11.org.example:disk"
            ]
        );
        assert_eq!(config.target.log.as_str(), "debug");
        assert_eq!(config.target.spin.as_micros(), 10);
        // The file itself need not be there.
        let files = [("target.d/main.toml", MAIN), ("target.d/disk.toml", DISK)];
        assert_eq!(read(&folder(&files)).unwrap().subsystems.len(), 1);
        let nothing = wrong(&folder(&[]));
        assert!(
            nothing.contains("FOLDER/target.toml: No such file"),
            "{nothing}"
        );
    }

    #[test]
    fn what_is_wrong_is_named_by_file_and_line() {
        let twice = [
            ("target.toml", MAIN),
            ("target.d/a.toml", DISK),
            ("target.d/b.toml", &format!("# Again.\n{DISK}")),
            (
                "target.d/c.toml",
                "\n[target]\nspin = \"20us\"\nhosts = 3\n",
            ),
        ];
        assert_eq!(
            wrong(&folder(&twice)),
            "FOLDER/target.d/b.toml line 3: subsystem[1].nqn: nqn.2026-11.org.example:disk is already used at \
             FOLDER/target.d/a.toml line 2: subsystem[0].nqn\n\
             FOLDER/target.d/c.toml line 3: target.spin: spin is already used at FOLDER/target.toml line 6: target.spin\n\
             FOLDER/target.d/c.toml line 4: target.hosts: there is no such key; did you mean `hosts_max`?"
        );
        let broken = [("target.toml", MAIN), ("target.d/a.toml", "[[subsystem]\n")];
        let said = wrong(&folder(&broken));
        assert!(said.starts_with("FOLDER/target.d/a.toml"), "{said}");
        assert!(said.contains("line 1, column"), "{said}");
        // One file has another table where the other has a list.
        let odd = [("target.toml", MAIN), ("target.d/a.toml", "listener = 3\n")];
        let said = wrong(&folder(&odd));
        let words = "FOLDER/target.d/a.toml line 1: listener: is a list in another file; write [[listener]] here";
        assert!(said.contains(words), "{said}");
        let stray = "[[subsystem.namespace]]\nram = \"1MiB\"\n";
        let stray = [("target.toml", DISK), ("target.d/a.toml", stray)];
        let said = wrong(&folder(&stray));
        assert!(said.contains("in the file of its [[subsystem]]"), "{said}");
        // A mark of the byte order moves no line.
        let marked = [
            ("target.toml", MAIN),
            ("target.d/a.toml", "\u{feff}\n[target]\nno = 1\n"),
        ];
        let said = wrong(&folder(&marked));
        assert!(
            said.contains("FOLDER/target.d/a.toml line 3: target.no"),
            "{said}"
        );
        let marked = [
            ("target.d/a.toml", "\u{feff}# A\n"),
            ("target.toml", MAIN),
            ("target.d/b.toml", DISK),
        ];
        assert!(read(&folder(&marked)).is_ok());
    }

    #[test]
    fn a_folder_that_cannot_be_read_is_named() {
        let many: Vec<_> = (0..65).map(|n| format!("target.d/{n}.toml")).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), "")).collect();
        let said = wrong(&folder(&many));
        assert!(
            said.contains("FOLDER/target.d has more than 64 files"),
            "{said}"
        );
        let file = tempfile::tempdir().unwrap();
        fs::write(file.path().join("target.toml"), MAIN).unwrap();
        fs::write(file.path().join("target.d"), "").unwrap();
        let said = wrong(&file);
        assert!(said.contains("FOLDER/target.d: Not a directory"), "{said}");
    }

    #[test]
    fn a_change_is_made_in_the_file_that_has_it() {
        let files = [
            ("target.toml", MAIN),
            ("target.d/disk.toml", DISK),
            ("target.d/log.toml", "[target]\nlog = \"info\" # for now\n"),
        ];
        let folder = folder(&files);
        let mut written = Written::read(&folder.path().join("target.toml")).unwrap();
        let disk = Nqn::new("nqn.2026-11.org.example:disk").unwrap();
        let host = Nqn::new("nqn.2014-08.org.example:host").unwrap();
        written.allow_host(&disk, &host).unwrap();
        let debug = EntryValue::Text("debug".to_owned());
        written.set_target("log", &debug).unwrap();
        let nqn = EntryValue::Text("nqn.2026-11.org.example:new".to_owned());
        let any = ("allow_any_host", EntryValue::Bool(true));
        written.add_subsystem(&vec![("nqn", nqn), any]).unwrap();
        let texts: Vec<_> = written
            .files()
            .iter()
            .map(|file| file.text.as_str())
            .collect();
        assert!(
            texts[0].starts_with(MAIN) && texts[0].contains(":new"),
            "{}",
            texts[0]
        );
        assert!(texts[1].contains(host.as_str()), "{}", texts[1]);
        assert_eq!(texts[2], "[target]\nlog = \"debug\" # for now\n");
        assert_eq!(written.config().unwrap().subsystems.len(), 2);
        written.remove_subsystem(&disk).unwrap();
        assert_eq!(written.files()[1].text, "");
        assert!(written.remove_subsystem(&disk).is_err());
    }
}
