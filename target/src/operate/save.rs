//! `config save`: this process writes the file, with the rights of those who call it. The target
//! itself may read its configuration and no more.

use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use capstan_control::answer::{ConfigFile, ConfigText, Saved};
use capstan_control::{Client, ConfigForm, Request};

/// Writes what is served into the files of the configuration. Returns what was done, a line each.
pub(super) fn save(client: &mut Client, overwrite: bool) -> anyhow::Result<Vec<String>> {
    let form = ConfigForm::Written;
    let shown: ConfigText = client.ask(&Request::ConfigShow { form })?;
    let mut lines = Vec::new();
    for file in &shown.files {
        if let Some(line) = save_one(file, overwrite)? {
            lines.push(line);
        }
    }
    let saved: Saved = client.ask(&Request::ConfigSaved {})?;
    lines.push(format!("changes saved: {}", saved.saved));
    Ok(lines)
}

fn save_one(file: &ConfigFile, overwrite: bool) -> anyhow::Result<Option<String>> {
    let Some(path) = &file.path else {
        bail!(
            "the target was started with --export or --config -, and has no file: `capstan-target config show` prints one that says what it \
             serves"
        );
    };
    let path = Path::new(path);
    let now = fs::read_to_string(path);
    let now = now.with_context(|| format!("{}: cannot be read", path.display()))?;
    if now == file.text {
        return Ok(None);
    }
    if !overwrite && file.read.as_ref().is_some_and(|read| *read != now) {
        bail!(
            "{} was changed since the target has read it; `capstan-target config diff` shows what differs from what is served: \
             `capstan-target reload --discard` takes the file, `capstan-target config save --overwrite` writes over it",
            path.display()
        );
    }
    write(path, &file.text).with_context(|| format!("{}: cannot be written", path.display()))?;
    Ok(Some(format!("{}: written", path.display())))
}

/// Puts a new file in the place of the old one: whole, or not at all. A link stays one.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let path: PathBuf = path.canonicalize()?;
    let old = path.metadata()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let beside = path.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = write_beside(&beside, text, &old).and_then(|()| Ok(fs::rename(&beside, &path)?));
    if written.is_err() {
        // It may not be there.
        let _ = fs::remove_file(&beside);
    }
    written?;
    if let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

fn write_beside(beside: &Path, text: &str, old: &fs::Metadata) -> anyhow::Result<()> {
    let mut file = File::create_new(beside)?;
    file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))?;
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        fchown(&file, Some(old.uid()), Some(old.gid()))?;
    }
    file.write_all(text.as_bytes())?;
    Ok(file.sync_all()?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::{ConfigFile, save_one};

    #[test]
    fn a_file_is_replaced_as_a_whole_and_what_others_wrote_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.toml");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let link = folder.path().join("link.toml");
        symlink(&path, &link).unwrap();
        let file = |read: &str| ConfigFile {
            path: Some(link.display().to_string()),
            text: "new".to_owned(),
            read: Some(read.to_owned()),
        };
        let refused = save_one(&file("older"), false).unwrap_err().to_string();
        assert!(refused.contains("--overwrite"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        save_one(&file("older"), true).unwrap().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(save_one(&file("older"), false).unwrap(), None);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
