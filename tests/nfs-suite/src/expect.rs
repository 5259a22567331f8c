//! What a case says when something is not as it expects.

use std::fmt::{self, Debug, Display, Formatter};

use nix::errno::Errno;

/// Why a case failed: what was done, what came of it and what was expected.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

impl Display for Failure {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        // A case is one line.
        to.write_str(&self.0.replace('\n', " "))
    }
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

fn name_of(error: Errno) -> String {
    format!("{error:?}")
}

/// The result of a system call.
pub(crate) trait Expect<T> {
    /// It is to succeed.
    fn succeeds(self, what: impl Display) -> Outcome<T>;
    /// It is to fail with one of these.
    fn refused(self, what: impl Display, with: &[Errno]) -> Outcome;
}

impl<T> Expect<T> for nix::Result<T> {
    fn succeeds(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| {
            Failure::new(format!(
                "{what}: {}, expected it to succeed",
                name_of(error)
            ))
        })
    }

    fn refused(self, what: impl Display, with: &[Errno]) -> Outcome {
        let expected: Vec<String> = with.iter().copied().map(name_of).collect();
        let expected = expected.join(" or ");
        match self {
            Ok(_) => Err(Failure::new(format!(
                "{what}: it succeeded, expected {expected}"
            ))),
            Err(error) if with.contains(&error) => Ok(()),
            Err(error) => Err(Failure::new(format!(
                "{what}: {}, expected {expected}",
                name_of(error)
            ))),
        }
    }
}

impl<T> Expect<T> for std::io::Result<T> {
    fn succeeds(self, what: impl Display) -> Outcome<T> {
        self.map_err(|error| match error.raw_os_error() {
            Some(number) => Failure::new(format!(
                "{what}: {}, expected it to succeed",
                name_of(Errno::from_raw(number))
            )),
            None => Failure::new(format!("{what}: {error}, expected it to succeed")),
        })
    }

    fn refused(self, what: impl Display, with: &[Errno]) -> Outcome {
        self.map_err(|error| Errno::from_raw(error.raw_os_error().unwrap_or_default()))
            .refused(what, with)
    }
}

/// Two values are to be the same.
#[expect(
    clippy::needless_pass_by_value,
    reason = "cases give values that they have just made"
)]
pub(crate) fn equal<T: PartialEq + Debug>(what: impl Display, actual: T, expected: T) -> Outcome {
    if actual == expected {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what}: {actual:?}, expected {expected:?}"
    )))
}

/// Something is to hold.
pub(crate) fn holds(what: impl Display, condition: bool) -> Outcome {
    if condition {
        return Ok(());
    }
    Err(Failure::new(format!("{what}: it is not so")))
}

/// Two runs of bytes are to be the same; where they are not, the first byte that differs is said.
pub(crate) fn same_bytes(what: impl Display, actual: &[u8], expected: &[u8]) -> Outcome {
    equal(format!("{what}, bytes"), actual.len(), expected.len())?;
    match actual.iter().zip(expected).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(Failure::new(format!(
            "{what}: byte {at} of {} is {:?}, expected {:?}",
            expected.len(),
            actual.get(at),
            expected.get(at)
        ))),
    }
}
