//! Text from an untrusted peer, and words of messages. Fields of fixed length are ASCII, space or
//! NUL padded and not terminated.

use core::fmt;

/// `text` as a field of `N` bytes, padded with spaces. What does not fit is cut; a character that
/// is not printable ASCII becomes `?`.
#[must_use]
pub fn space_padded<const N: usize>(text: &str) -> [u8; N] {
    padded(text, b' ')
}

/// `text` as a field of `N` bytes, padded with NULs. What does not fit is cut; a character that is
/// not printable ASCII becomes `?`.
#[must_use]
pub fn nul_padded<const N: usize>(text: &str) -> [u8; N] {
    padded(text, 0)
}

fn padded<const N: usize>(text: &str, padding: u8) -> [u8; N] {
    let mut field = [padding; N];
    for (to, from) in field.iter_mut().zip(text.chars()) {
        *to = match u8::try_from(from) {
            Ok(byte @ 0x20..=0x7E) => byte,
            Ok(_) | Err(_) => b'?',
        };
    }
    field
}

/// A text field without its padding: up to the first NUL, without spaces at the end.
///
/// `Display` never writes a control character, whatever the peer sent: a byte that is not
/// printable ASCII becomes `?`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TextField<'a>(&'a [u8]);

impl<'a> TextField<'a> {
    /// The text in `field`.
    #[must_use]
    pub fn new(field: &'a [u8]) -> Self {
        let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
        Self(text.trim_ascii_end())
    }

    /// The text's bytes, as they came.
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// The text, when it is printable ASCII throughout.
    #[must_use]
    pub fn as_str(self) -> Option<&'a str> {
        if self.0.iter().all(|byte| matches!(byte, 0x20..=0x7E)) {
            core::str::from_utf8(self.0).ok()
        } else {
            None
        }
    }
}

impl fmt::Display for TextField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        for byte in self.0 {
            let printable = matches!(byte, 0x20..=0x7E);
            f.write_char(if printable { char::from(*byte) } else { '?' })?;
        }
        Ok(())
    }
}

impl fmt::Debug for TextField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Text for people, whatever it holds: what a terminal or a log would not show as it is (control
/// characters, line and paragraph separators, characters that turn the direction of the text or
/// take no room) is escaped as in Rust. A backslash stays one: names of devices have them, and what
/// was escaped before.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a>(pub &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        if self.0.chars().all(is_shown) {
            return f.pad(self.0);
        }
        self.0.chars().try_for_each(|char| {
            if is_shown(char) {
                f.write_char(char)
            } else {
                fmt::Display::fmt(&char.escape_debug(), f)
            }
        })
    }
}

/// `escape_debug` knows what Unicode calls a control, a format or a separator. Quotes and
/// backslashes it escapes for Rust's sake.
fn is_shown(char: char) -> bool {
    matches!(char, '\'' | '"' | '\\') || char.escape_debug().len() == 1
}

/// A word of a command line that a message names, as a shell takes it (POSIX.1-2024, Shell Command
/// Language, section 2.2): quoted where it has to be, in one line whatever it holds.
#[derive(Clone, Copy, Debug)]
pub struct Word<'a> {
    bytes: &'a [u8],
    /// In front of it, so that it is no option.
    folder: &'static str,
}

impl<'a> Word<'a> {
    /// A value.
    #[must_use]
    pub const fn new(text: &'a str) -> Self {
        Self {
            bytes: text.as_bytes(),
            folder: "",
        }
    }

    /// A path, in the bytes that it has in the file system.
    #[must_use]
    pub fn path(bytes: &'a [u8]) -> Self {
        let folder = if bytes.starts_with(b"-") { "./" } else { "" };
        Self { bytes, folder }
    }
}

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write as _;
        let text = core::str::from_utf8(self.bytes).ok();
        let Some(text) = text.filter(|text| text.chars().all(is_shown)) else {
            write!(f, "$'{}", self.folder)?;
            for &byte in self.bytes {
                match byte {
                    b'\n' => f.write_str("\\n")?,
                    b'\t' => f.write_str("\\t")?,
                    b'\'' | b'\\' => write!(f, "\\{}", char::from(byte))?,
                    b' '..=b'~' => f.write_char(char::from(byte))?,
                    // Three digits, so that a digit behind it is none of them.
                    _ => write!(f, "\\{byte:03o}")?,
                }
            }
            return f.write_char('\'');
        };
        if !text.is_empty() && text.chars().all(is_plain) {
            return write!(f, "{}{text}", self.folder);
        }
        write!(f, "'{}", self.folder)?;
        for (at, piece) in text.split('\'').enumerate() {
            f.write_str(if at == 0 { "" } else { "'\\''" })?;
            f.write_str(piece)?;
        }
        f.write_char('\'')
    }
}

/// Whether a shell takes it as it is, anywhere in a word.
fn is_plain(char: char) -> bool {
    char.is_alphanumeric() || "_./:=@%+,-".contains(char)
}

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
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn text_is_padded_cut_and_made_printable() {
        assert_eq!(space_padded::<6>("abc"), *b"abc   ");
        assert_eq!(nul_padded::<4>("abcdef"), *b"abcd");
        assert_eq!(nul_padded::<4>("a\né"), *b"a??\0");
    }

    #[test]
    fn what_is_shown_is_shown_twice_as_once() {
        let shown = Shown("/dev/a\\x20b\u{1b}[31m\u{202e}'\"\n").to_string();
        assert_eq!(shown, "/dev/a\\x20b\\u{1b}[31m\\u{202e}'\"\\n");
        assert_eq!(Shown(&shown).to_string(), shown);
    }

    #[test]
    fn a_word_is_quoted_where_a_shell_would_take_it_apart() {
        for (text, quoted) in [
            ("/mnt/a-b_1.2:3@x+y,z=%", "/mnt/a-b_1.2:3@x+y,z=%"),
            ("über", "über"),
            ("", "''"),
            ("a b", "'a b'"),
            ("$HOME `id` \"x\" *?~!#\\", "'$HOME `id` \"x\" *?~!#\\'"),
            ("&|;<>()[]{}", "'&|;<>()[]{}'"),
            ("it's", r"'it'\''s'"),
            ("a\nb\tc'd\\e\u{1b}0", r"$'a\nb\tc\'d\\e\0330'"),
        ] {
            assert_eq!(Word::new(text).to_string(), quoted);
        }
    }

    #[test]
    fn a_path_is_no_option_and_has_its_bytes() {
        assert_eq!(Word::path(b"-rf").to_string(), "./-rf");
        assert_eq!(Word::path(b"-r f").to_string(), "'./-r f'");
        assert_eq!(Word::path(b"a\xff1").to_string(), r"$'a\3771'");
        assert_eq!(Word::new("-N").to_string(), "-N");
    }

    #[test]
    fn one_is_no_plural() {
        let said = [0, 1, 2].map(|count| Count(count, "block").to_string());
        assert_eq!(said, ["0 blocks", "1 block", "2 blocks"]);
    }

    #[test]
    fn padding_is_dropped_on_the_way_back() {
        assert_eq!(TextField::new(b"abc   ").as_str(), Some("abc"));
        assert_eq!(TextField::new(b"a b\0xyz").as_str(), Some("a b"));
        assert_eq!(TextField::new(b"    ").as_str(), Some(""));
    }

    #[test]
    fn control_characters_never_reach_a_terminal() {
        let field = TextField::new(b"x\x1B[2J\xFF");
        assert_eq!(field.as_str(), None);
        assert_eq!(field.to_string(), "x?[2J?");
    }
}
