//! The configuration as it was read, and as it is with what was changed since.

use std::path::{self, Path, PathBuf};

use capstan_config::{Config, Written, WrittenFile};
use capstan_control::answer::{Changed, ConfigDiff, ConfigFile, ConfigState, ConfigText};
use similar::TextDiff;

/// Changes that are kept in words; of more, the first. Each is a line of an NQN or two.
const UNSAVED_KEPT: usize = 1024;

#[derive(Debug)]
pub(super) struct Texts {
    /// What the file said.
    read: Written,
    /// What it would have to say.
    running: Written,
    /// What was changed between the two.
    unsaved: Vec<String>,
    reload_failed: Option<String>,
    /// Its whole path, as others have other folders.
    file: Option<PathBuf>,
}

impl Texts {
    /// Of a configuration that was just read.
    pub(super) fn of(written: Written) -> Self {
        // What came from stdin is gone.
        let named = written.path().filter(|path| path.as_os_str() != "-");
        let file = named.map(|path| path::absolute(path).unwrap_or_else(|_| path.to_owned()));
        Self {
            file,
            running: written.clone(),
            read: written,
            unsaved: Vec::new(),
            reload_failed: None,
        }
    }

    /// The file that it was read from, which can be read again.
    pub(super) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    pub(super) const fn running(&self) -> &Written {
        &self.running
    }

    /// The text is this one by a change.
    pub(super) fn changed(&mut self, running: Written, change: String) {
        let says = |written: &Written| written.config().ok();
        self.running = running;
        if says(&self.running) == says(&self.read) {
            // It has been undone.
            self.running = self.read.clone();
            self.unsaved.clear();
        } else if self.unsaved.len() < UNSAVED_KEPT {
            self.unsaved.push(change);
        }
    }

    /// The answer to a change, but for what it did.
    pub(super) fn answer(&self) -> Changed {
        Changed {
            changes: String::new(),
            warnings: Vec::new(),
            unsaved: self.unsaved.len(),
            savable: self.file.is_some(),
            nsid: None,
        }
    }

    pub(super) fn unsaved(&self) -> &[String] {
        &self.unsaved
    }

    /// None where `config` says what is served.
    pub(super) fn unsaved_but_for(&self, config: &Config) -> Vec<String> {
        match self.running.config() {
            Ok(running) if running == *config => Vec::new(),
            _ => self.unsaved.clone(),
        }
    }

    /// The file says it now: so many changes are saved. `None` where it does not.
    pub(super) fn saved(&mut self, read: &Written) -> Option<usize> {
        let says = (read.config().ok()?, self.running.config().ok()?);
        (says.0 == says.1).then(|| {
            let saved = self.unsaved.len();
            *self = Self::of(read.clone());
            saved
        })
    }

    pub(super) fn reload_failed(&self) -> Option<&str> {
        self.reload_failed.as_deref()
    }

    pub(super) fn reload_went(&mut self, failed: Option<String>) {
        self.reload_failed = failed;
    }

    pub(super) fn state(&self) -> ConfigState {
        ConfigState {
            files: self.read.files().iter().filter_map(shown).collect(),
            unsaved: self.unsaved.clone(),
            reload_failed: self.reload_failed.clone(),
        }
    }

    pub(super) fn shown(&self) -> ConfigText {
        let files = self.running.files().iter().zip(self.read.files());
        let files = files.map(|(running, read)| {
            let path = shown(running);
            ConfigFile {
                read: path.is_some().then(|| read.text.clone()),
                path,
                text: running.text.clone(),
            }
        });
        ConfigText {
            files: files.collect(),
        }
    }

    /// Beside what the files say `now`.
    pub(super) fn diff(&self, now: Option<&Written>) -> ConfigDiff {
        let now = now.unwrap_or(&self.read).files();
        let text = |all: &[WrittenFile], file: &WrittenFile| {
            find_in(all, file).map_or_else(String::new, |found| found.text.clone())
        };
        let running = self.running.files();
        // Files may have come and gone.
        let gone = running.iter().filter(|file| find_in(now, file).is_none());
        let files = now.iter().chain(gone);
        let each = files.map(|file| {
            let name = shown(file).unwrap_or_else(|| "as started".to_owned());
            let (before, served) = (text(now, file), text(running, file));
            let diff = TextDiff::from_lines(&before, &served);
            diff.unified_diff()
                .header(&name, "what is served")
                .to_string()
        });
        ConfigDiff {
            unsaved: self.unsaved.clone(),
            diff: each.collect(),
        }
    }
}

fn find_in<'f>(all: &'f [WrittenFile], file: &WrittenFile) -> Option<&'f WrittenFile> {
    all.iter().find(|other| shown(other) == shown(file))
}

/// Its whole path, as others have other folders; none of what came from stdin or options.
fn shown(file: &WrittenFile) -> Option<String> {
    let path = file.path.as_ref().filter(|path| path.as_os_str() != "-")?;
    let whole = path::absolute(path).unwrap_or_else(|_| path.clone());
    Some(whole.display().to_string())
}

#[cfg(test)]
mod tests {
    use capstan_config::{EntryValue, Written};

    use super::Texts;

    const FILE: &str = "[[listener]]\naddress = \"127.0.0.1\"\n\n[[subsystem]]\nnqn = \"nqn.2026-11.org.example:a\"\n\
                        allow_any_host = true\n";

    #[test]
    fn a_change_is_unsaved_until_the_file_says_it_or_it_is_undone() {
        let mut texts = Texts::of(Written::of_text(FILE.to_owned()));
        let mut changed = texts.running().clone();
        changed
            .set_target("log", &EntryValue::Text("debug".to_owned()))
            .unwrap();
        texts.changed(changed.clone(), "log level debug".to_owned());
        assert_eq!(texts.unsaved(), ["log level debug"]);
        let diff = texts.diff(None).diff;
        assert!(diff.contains("+log = \"debug\"\n"), "{diff}");
        assert_eq!(texts.saved(&Written::of_text(FILE.to_owned())), None);
        let file = changed.config().unwrap();
        assert!(texts.unsaved_but_for(&file).is_empty());
        assert_eq!(texts.saved(&changed), Some(1));
        assert!(texts.unsaved().is_empty() && texts.diff(None).diff.is_empty());
        // Once more, and back.
        let mut other = changed.clone();
        other
            .set_target("log", &EntryValue::Text("warn".to_owned()))
            .unwrap();
        texts.changed(other, "log level warn".to_owned());
        texts.changed(changed, "log level debug".to_owned());
        assert!(texts.unsaved().is_empty());
    }
}
