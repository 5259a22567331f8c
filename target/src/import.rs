//! `import`: the file of another target, read and converted, and the configuration written.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use capstan_config::import::{self, IMPORT_BYTES_MAX, Note};

use crate::cli::Import;

/// What there is to print.
#[derive(Debug)]
pub struct Done {
    /// The configuration, where it is in no file.
    pub toml: Option<String>,
    /// What is not in it, or otherwise.
    pub notes: Vec<Note>,
}

/// Converts the file, and writes what it becomes where a file is named for it.
///
/// # Errors
/// The file cannot be read, is none that is converted, or what it becomes cannot be written.
pub fn run(options: &Import) -> anyhow::Result<Done> {
    let name = match options.file.to_str() {
        Some("-") => "stdin".into(),
        _ => options.file.display().to_string(),
    };
    let json = read(&options.file).with_context(|| {
        format!("{name}: cannot be read; expected the file that `nvmetcli save` has written")
    })?;
    let imported = import::nvmet(&json).map_err(|error| match error.to_string() {
        // Of several lines each has its own place.
        lines if lines.contains('\n') => anyhow::anyhow!("{name}:\n{lines}"),
        line => anyhow::anyhow!("{name}: {line}"),
    })?;
    let Some(output) = &options.output else {
        return Ok(Done {
            toml: Some(imported.toml),
            notes: imported.notes,
        });
    };
    write(output, &imported.toml)?;
    Ok(Done {
        toml: None,
        notes: imported.notes,
    })
}

/// One byte more than is converted, so that a longer file is known to be longer.
fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = IMPORT_BYTES_MAX + 1;
    match file.to_str() {
        Some("-") => io::stdin().lock().take(most).read_to_end(&mut bytes)?,
        _ => File::open(file)?.take(most).read_to_end(&mut bytes)?,
    };
    Ok(bytes)
}

fn write(output: &Path, toml: &str) -> anyhow::Result<()> {
    let made = OpenOptions::new().write(true).create_new(true).open(output);
    let mut file = match made {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => bail!(
            "{}: it is there already, and is not written over; give --output another name, and compare the two",
            output.display()
        ),
        made => made.with_context(|| format!("{}: cannot be made", output.display()))?,
    };
    let written = file
        .write_all(toml.as_bytes())
        .and_then(|()| file.sync_all());
    written.with_context(|| {
        // Half of a configuration may be one as well.
        let removed = match std::fs::remove_file(output) {
            Ok(()) => "",
            Err(_) => "; remove it, as it is not whole",
        };
        format!("{}: cannot be written{removed}", output.display())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use capstan_config::Config;

    use super::run;
    use crate::cli::Import;

    const SAVED: &str = include_str!("../../config/tests/data/nvmet.json");

    #[test]
    fn what_is_converted_is_written_once_or_given_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        fs::write(&file, SAVED).unwrap();
        let output = folder.path().join("target.toml");
        let options = |output| Import {
            file: file.clone(),
            output,
        };
        let given = run(&options(None)).unwrap();
        let done = run(&options(Some(output.clone()))).unwrap();
        assert_eq!(done.toml, None);
        assert!(!done.notes.is_empty() && done.notes == given.notes);
        assert_eq!(fs::read_to_string(&output).unwrap(), given.toml.unwrap());
        assert_eq!(Config::from_file(&output).unwrap().listeners.len(), 2);
        fs::write(&output, "mine").unwrap();
        let error = run(&options(Some(output.clone()))).unwrap_err().to_string();
        assert!(
            error.contains("target.toml: it is there already"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&output).unwrap(), "mine");
    }

    #[test]
    fn a_file_that_is_wrong_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        let options = Import {
            file: file.clone(),
            output: None,
        };
        let error = format!("{:#}", run(&options).unwrap_err());
        assert!(error.contains("config.json: cannot be read"), "{error}");
        assert!(error.contains("No such file"), "{error}");
        let wrong = SAVED.replace("\"192.0.2.10\"", "\"storage\"");
        fs::write(&file, wrong).unwrap();
        let error = format!("{:#}", run(&options).unwrap_err());
        assert!(
            error.contains("config.json:\nports[0].addr.traddr: "),
            "{error}"
        );
        fs::write(&file, "{").unwrap();
        let error = format!("{:#}", run(&options).unwrap_err());
        assert!(error.contains("config.json: it is not JSON"), "{error}");
    }
}
