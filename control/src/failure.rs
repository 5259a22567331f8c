//! Why a request was not carried out.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The error of an answer: `error` of JSON-RPC 2.0, with what a program can act on in `data`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The number of its kind.
    code: i32,
    /// The whole of it in words, with the next step.
    pub message: String,
    /// The same in parts.
    #[serde(default)]
    pub data: Box<Details>,
}

/// What is wrong, in parts, as far as it has such.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Details {
    /// Its kind, as a word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// The parameter, or the field of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<String>,
    /// What there is that is most like it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nearest: Option<String>,
}

/// Kinds of failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// No JSON.
    NotJson,
    /// JSON, but no request.
    NoRequest,
    /// A method that there is not.
    UnknownMethod,
    /// Parameters that the method does not have or take.
    WrongParameters,
    /// Nothing has this name.
    NotFound,
    /// Something has this name already.
    Exists,
    /// A value that the configuration does not take.
    Invalid,
    /// What is served cannot be changed so now.
    Refused,
    /// It would lose changes that are in no file.
    Unsaved,
    /// Others are being served, or the target ends.
    Busy,
    /// It cannot be done for a reason outside of the request.
    Failed,
}

impl Kind {
    /// As it is in `data`.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotJson => "not-json",
            Self::NoRequest => "no-request",
            Self::UnknownMethod => "unknown-method",
            Self::WrongParameters => "wrong-parameters",
            Self::NotFound => "not-found",
            Self::Exists => "exists",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Unsaved => "unsaved",
            Self::Busy => "busy",
            Self::Failed => "failed",
        }
    }

    /// The number of JSON-RPC 2.0 (section 5.1), or one of ours beside them.
    const fn code(self) -> i32 {
        match self {
            Self::NotJson => -32700,
            Self::NoRequest => -32600,
            Self::UnknownMethod => -32601,
            Self::WrongParameters => -32602,
            Self::NotFound => 1,
            Self::Exists => 2,
            Self::Invalid => 3,
            Self::Refused => 4,
            Self::Unsaved => 5,
            Self::Busy => 6,
            Self::Failed => 7,
        }
    }
}

impl Failure {
    /// A failure in these words.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            code: kind.code(),
            message: message.into(),
            data: Box::new(Details {
                kind: Some(kind),
                ..Details::default()
            }),
        }
    }

    /// Nothing of this `kind of thing` has that name; `names` are those there are.
    pub fn not_found<'n>(
        what: &str,
        field: &str,
        name: &str,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Self {
        let names: Vec<_> = names.into_iter().collect();
        let nearest = nearest(name, names.iter().copied()).map(ToOwned::to_owned);
        let next = match &nearest {
            Some(nearest) => format!("did you mean `{nearest}`?"),
            None if names.is_empty() => "there is none".to_owned(),
            None => format!("expected one of {}", listed(&names)),
        };
        let shown: String = name.chars().take(NAME_CHARS_SHOWN).collect();
        let mut failure = Self::new(
            Kind::NotFound,
            format!("{what} `{}` does not exist; {next}", shown.escape_debug()),
        );
        failure.data.field = Some(field.to_owned());
        failure.data.value = Some(name.to_owned());
        failure.data.nearest = nearest;
        failure
    }

    /// With the parameter that it is about.
    #[must_use]
    pub fn of_field(mut self, field: impl Into<String>) -> Self {
        self.data.field = Some(field.into());
        self
    }

    /// With what that was.
    #[must_use]
    pub fn of_value(mut self, value: impl fmt::Display) -> Self {
        self.data.value = Some(value.to_string());
        self
    }

    /// With what it may be.
    #[must_use]
    pub fn allowed(mut self, allowed: impl Into<String>) -> Self {
        self.data.allowed = Some(allowed.into());
        self
    }

    /// With what it was most likely meant to be.
    #[must_use]
    pub fn meant(mut self, nearest: Option<impl Into<String>>) -> Self {
        self.data.nearest = nearest.map(Into::into);
        self
    }
}

/// Characters of a name that a message shows: an NQN has 223 at most.
const NAME_CHARS_SHOWN: usize = 256;
/// Names that a message lists.
const NAMES_SHOWN: usize = 8;

fn listed(names: &[&str]) -> String {
    let mut words = names.iter().take(NAMES_SHOWN).copied();
    let first: Vec<_> = words.by_ref().collect();
    match names.len().saturating_sub(NAMES_SHOWN) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// The name that `word` is most likely a slip of: at most a third of its characters apart.
pub(crate) fn nearest<'n>(word: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // The distance costs the square of it.
    if word.len() > NAME_CHARS_SHOWN {
        return None;
    }
    let near = names.into_iter().map(|name| {
        let distance = strsim::damerau_levenshtein(word, name);
        (distance, name)
    });
    near.filter(|(distance, name)| *distance <= (name.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::{Failure, Kind};

    #[test]
    fn the_word_of_a_kind_is_what_is_sent() {
        let kinds = [
            Kind::NotJson,
            Kind::NoRequest,
            Kind::UnknownMethod,
            Kind::WrongParameters,
            Kind::NotFound,
            Kind::Exists,
            Kind::Invalid,
            Kind::Refused,
            Kind::Unsaved,
            Kind::Busy,
            Kind::Failed,
        ];
        for kind in kinds {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.word());
        }
    }

    #[test]
    fn what_is_not_there_names_the_nearest_or_what_there_is() {
        let names = [
            "nqn.2026-11.org.example:disk",
            "nqn.2026-11.org.example:tape",
        ];
        let of = |name: &str, names: &[&str]| {
            Failure::not_found("subsystem", "nqn", name, names.iter().copied())
        };
        let slip = of("nqn.2026-11.org.example:dsik", &names);
        assert_eq!(slip.data.nearest.as_deref(), Some(names[0]));
        assert_eq!(
            slip.to_string(),
            format!(
                "subsystem `nqn.2026-11.org.example:dsik` does not exist; did you mean `{}`?",
                names[0]
            )
        );
        let other = of("x", &names).to_string();
        assert!(
            other.ends_with(&format!("expected one of {}, {}", names[0], names[1])),
            "{other}"
        );
        assert!(of("x", &[]).to_string().ends_with("there is none"));
        let many: Vec<_> = (100..120).map(|n| n.to_string()).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert!(of("x", &many).to_string().ends_with("107 and 12 more"));
    }

    #[test]
    fn a_failure_has_the_shape_of_json_rpc() {
        let failure = Failure::new(Kind::Exists, "it is there")
            .of_field("nqn")
            .of_value("a")
            .allowed("another one");
        let json = serde_json::to_value(&failure).unwrap();
        let wanted = serde_json::json!({
            "code": 2,
            "message": "it is there",
            "data": {"kind": "exists", "field": "nqn", "value": "a", "allowed": "another one"},
        });
        assert_eq!(json, wanted);
        assert_eq!(serde_json::from_value::<Failure>(wanted).unwrap(), failure);
        // Of a later version, or another program.
        let bare = serde_json::json!({"code": -1, "message": "no"});
        assert_eq!(
            serde_json::from_value::<Failure>(bare).unwrap().to_string(),
            "no"
        );
    }
}
