//! `config save`: this process writes the file, with the rights of its caller. The target
//! itself may read its configuration and no more.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

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
    let now = match fs::read_to_string(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        now => Some(now.with_context(|| format!("{}: cannot be read", path.display()))?),
    };
    if now.as_ref() == Some(&file.text) {
        return Ok(None);
    }
    if !overwrite && file.read.is_some() && file.read != now {
        let how = match now {
            Some(_) => "was changed, perhaps by another `capstan-target config save`,",
            None => "was removed",
        };
        bail!(
            "{} {how} since the target has read it; `capstan-target config diff` shows what differs from what is served: \
             `capstan-target reload --discard` takes what the files say, `capstan-target config save --overwrite` writes over that",
            path.display()
        );
    }
    let written = capstan_toml_file::replace(path, &file.text);
    written.with_context(|| format!("{}: cannot be written", path.display()))?;
    Ok(Some(format!("{}: written", path.display())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{ConfigFile, save_one};

    #[test]
    fn what_others_wrote_is_not_written_over_unasked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("target.toml");
        fs::write(&path, "old").unwrap();
        let file = |read: &str| ConfigFile {
            path: Some(path.display().to_string()),
            text: "new".to_owned(),
            read: Some(read.to_owned()),
        };
        let refused = save_one(&file("older"), false).unwrap_err().to_string();
        assert!(refused.contains("--overwrite"), "{refused}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        save_one(&file("older"), true).unwrap().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(save_one(&file("older"), false).unwrap(), None);
        fs::remove_file(&path).unwrap();
        let refused = save_one(&file("new"), false).unwrap_err().to_string();
        assert!(refused.contains("was removed since"), "{refused}");
        save_one(&file("new"), true).unwrap().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}
