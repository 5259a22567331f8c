//! Words of messages.

use std::fmt;

/// So many of something, whose name is given in the singular: `1 block`, `2 blocks`.
#[derive(Clone, Copy, Debug)]
pub struct Count<'a>(pub u64, pub &'a str);

impl fmt::Display for Count<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(1, one) => write!(f, "1 {one}"),
            Self(count, one) => write!(f, "{count} {one}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn one_is_no_plural() {
        let said = [0, 1, 2].map(|count| Count(count, "block").to_string());
        assert_eq!(said, ["0 blocks", "1 block", "2 blocks"]);
    }
}
