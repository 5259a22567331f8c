//! Folders that environment variables name: an empty one counts as not set, and one that is not
//! absolute is refused, as the processes of a volume work in other folders.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::claim;
use crate::front_ends::disk::record;

/// The folder that a variable names, if any.
pub(crate) fn folder(variable: &str) -> Option<PathBuf> {
    named(std::env::var_os(variable))
}

fn named(value: Option<OsString>) -> Option<PathBuf> {
    value.filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// What is wrong with those of this process.
///
/// # Errors
/// One names a folder that is not absolute: its name and value, and what is right.
pub fn check() -> Result<(), String> {
    for variable in [record::RUN_DIR_VARIABLE, claim::FOLDER_VARIABLE] {
        if let Some(path) = folder(variable).filter(|path| !path.is_absolute()) {
            let absolute = std::path::absolute(&path).unwrap_or_default();
            return Err(format!(
                "{variable} is {}, expected an absolute path, as {}",
                path.display(),
                absolute.display()
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::named;

    #[test]
    fn an_empty_variable_is_not_set() {
        assert_eq!(named(None), None);
        assert_eq!(named(Some("".into())), None);
        assert_eq!(named(Some("/run".into())), Some("/run".into()));
    }
}
