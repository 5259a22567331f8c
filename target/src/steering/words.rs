//! A change in words: the command that makes it, as `config diff` and warnings have it.

use std::fmt::Display;

/// The command of a change, whole: given again, it makes the same change.
pub(super) struct Words {
    text: String,
    told_by: ToldBy,
}

/// What says that a change is carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ToldBy {
    /// Its words.
    Words,
    /// What it has changed of namespaces, where there is such.
    Namespaces,
}

impl Words {
    /// Of a command and the arguments that it has to have.
    pub(super) fn new(command: impl Into<String>) -> Self {
        Self {
            text: command.into(),
            told_by: ToldBy::Words,
        }
    }

    /// Another argument.
    pub(super) fn argument(mut self, argument: impl Display) -> Self {
        self.text += &format!(" {}", quoted(&argument.to_string()));
        self
    }

    /// An option, where it is given.
    pub(super) fn option(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            self.text += &format!(" {name} {}", quoted(&value.to_string()));
        }
        self
    }

    /// An option without a value.
    pub(super) fn flag(mut self, name: &str, is_given: bool) -> Self {
        if is_given {
            self.text += &format!(" {name}");
        }
        self
    }

    pub(super) fn told_by_namespaces(mut self) -> Self {
        self.told_by = ToldBy::Namespaces;
        self
    }

    pub(super) fn into_parts(self) -> (String, ToldBy) {
        (self.text, self.told_by)
    }
}

/// A word as a shell takes it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:,/=@%+".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_that_are_given() {
        let words = Words::new("namespace add nqn.a:b /dev/sdb")
            .option("--nsid", Some(3))
            .option("--uuid", None::<&str>)
            .flag("--read-only", true)
            .flag("--other", false);
        assert_eq!(
            words.into_parts().0,
            "namespace add nqn.a:b /dev/sdb --nsid 3 --read-only"
        );
    }

    #[test]
    fn what_a_shell_would_take_apart_is_quoted() {
        for (word, expected) in [
            ("a b", "'a b'"),
            ("", "''"),
            ("it's", r"'it'\''s'"),
            ("10.0.0.0/8,fd00::/8", "10.0.0.0/8,fd00::/8"),
        ] {
            let (text, _) = Words::new("x").option("--serial", Some(word)).into_parts();
            assert_eq!(text, format!("x --serial {expected}"));
        }
    }
}
