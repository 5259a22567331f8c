//! Values of options: what each may be, told with the value and the range when it is not.

use std::fmt::{self, Display};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Error;
use capstan_initiator::address::check_traddr;
use capstan_initiator::options::TRANSFER_BYTES_MAX;
use capstan_nvme_proto::nqn::Nqn;
use capstan_nvme_proto::sqe::NSID_BROADCAST;
use clap::builder::{StringValueParser, TypedValueParser};
use uuid::Uuid;

/// Words of the command line that were taken one by one and make no command together: without
/// effect, or contradicting each other. The exit status is that of clap's own errors.
#[derive(Debug)]
pub(crate) struct WrongWords(String);

impl Display for WrongWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WrongWords {}

/// [`WrongWords`], in these words.
pub(crate) fn wrong(text: impl Into<String>) -> Error {
    WrongWords(text.into()).into()
}

/// A day in seconds: longer waits are mistakes.
pub(crate) const DAY_S: u32 = 24 * 3600;
/// The longest time of a measurement, which clocks can be added up to.
const TIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// Bytes of one I/O of a measurement.
const BS: RangeInclusive<u64> = 512..=4 << 20;
/// NSIDs of one namespace; FFFFFFFFh is for all of them.
const NSIDS: RangeInclusive<u32> = 1..=NSID_BROADCAST - 1;

/// A number in a range, which a wrong one is told.
pub(crate) fn within<T>(range: RangeInclusive<T>) -> impl TypedValueParser<Value = T>
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    StringValueParser::new().try_map(move |text| {
        let number = text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("expected {} to {}", range.start(), range.end()))
    })
}

/// The NSID of one namespace.
pub(crate) fn parse_nsid() -> impl TypedValueParser<Value = u32> {
    within(NSIDS)
}

/// An address of a target.
pub(crate) fn parse_traddr(text: &str) -> Result<String, String> {
    check_traddr(text).map_err(|error| error.to_string())?;
    Ok(text.to_owned())
}

/// An address of this host.
pub(crate) fn parse_host_traddr(text: &str) -> Result<IpAddr, String> {
    let expected = "expected an IPv4 or IPv6 address of this machine (`ip address` lists them)";
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() || address.is_multicast() => {
            Err(expected.to_owned())
        }
        Ok(address) => Ok(address),
        Err(_) if bare.contains('%') => Err(format!(
            "{expected}, without a zone: the one of --traddr is taken"
        )),
        Err(_) => Err(expected.to_owned()),
    }
}

/// The name of a host or a subsystem.
pub(crate) fn parse_nqn(text: &str) -> Result<String, String> {
    let nqn = Nqn::new(text).map_err(|error| error.to_string())?;
    Ok(nqn.as_str().to_owned())
}

/// A host identifier.
pub(crate) fn parse_hostid(text: &str) -> Result<String, String> {
    let uuid = Uuid::parse_str(text).ok().filter(|uuid| !uuid.is_nil());
    match uuid {
        Some(_) => Ok(text.to_owned()),
        None => Err("expected a UUID other than zero (`uuidgen` makes one)".to_owned()),
    }
}

/// How long a lost controller is waited for, in seconds.
pub(crate) fn parse_ctrl_loss_tmo(text: &str) -> Result<i64, String> {
    let seconds = text.parse::<i64>().ok();
    seconds
        .filter(|seconds| (-1..=i64::from(u32::MAX)).contains(seconds))
        .ok_or_else(|| format!("expected 0 to {}, or -1 for ever", u32::MAX))
}

/// Bytes of one I/O of a measurement.
pub(crate) fn parse_bs(text: &str) -> Result<u32, String> {
    let range = || "expected 512 to 4 MiB, a multiple of the LBA size".to_owned();
    let bytes = match parse_bytes(text) {
        Err(too_large) if too_large == TOO_MANY_BYTES => return Err(range()),
        bytes => bytes?,
    };
    let bytes = u32::try_from(bytes).ok().filter(|_| BS.contains(&bytes));
    bytes.ok_or_else(range)
}

/// A number of bytes other than 0.
pub(crate) fn parse_some_bytes(text: &str) -> Result<u64, String> {
    match parse_bytes(text)? {
        0 => Err("expected at least one LBA".to_owned()),
        bytes => Ok(bytes),
    }
}

/// A time that is not over at once, as [`parse_duration`].
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    match time.is_zero() {
        true => Err("expected more than 0 s".to_owned()),
        false => Ok(time),
    }
}

const TOO_MANY_BYTES: &str = "expected less than 2^64 bytes";

/// A number of bytes as fio and nvme-cli write it: `4096`, `4k`, `1M`, `16MiB`, `2g`. Powers of
/// 1024; what is a power of 1000 elsewhere is refused, as by `capstan-target`.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "kb" | "mb" | "gb" | "tb" => {
            let prefix = unit[..1].to_ascii_uppercase();
            return Err(format!(
                "it has a decimal unit; write `{number}{prefix}iB`, or plain bytes"
            ));
        }
        _ => return Err("expected a number of bytes, like 4096, 4k, 16MiB or 1g".to_owned()),
    };
    // The digits of a number beyond 64 bits are one, too.
    let number = number.parse::<u64>().map_err(|_| match number.is_empty() {
        true => "expected a number of bytes, like 4096, 4k, 16MiB or 1g",
        false => TOO_MANY_BYTES,
    })?;
    let bytes = number.checked_mul(1 << shift);
    bytes.ok_or_else(|| TOO_MANY_BYTES.to_owned())
}

/// A number, decimal or like `0x0f`.
pub(crate) fn parse_number<T: TryFrom<u32>>(text: &str) -> Result<T, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = number.ok().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| {
        let bits = 8 * size_of::<T>();
        format!("expected a number of {bits} bits, like 15 or 0x0f")
    })
}

/// Bytes of data of a command whose data is not known: at most 1 MiB.
pub(crate) fn parse_data_len() -> impl TypedValueParser<Value = u32> {
    within(0..=TRANSFER_BYTES_MAX)
}

/// A time as fio writes it (`30` is seconds), or with a unit (`1m30s`).
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let time = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) if is_number => Duration::MAX,
        Err(_) => humantime::parse_duration(text)
            .map_err(|_| "expected seconds, or a time like 500ms or 1m30s".to_owned())?,
    };
    match time <= TIME_MAX {
        true => Ok(time),
        false => Err("expected at most a year".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{Arg, Command};

    use super::{parse_bs, parse_bytes, parse_ctrl_loss_tmo, parse_duration, parse_time, within};

    /// The words of the standard library say neither the range nor the unit.
    #[test]
    fn every_value_that_is_wrong_is_told_what_was_expected() {
        let all = super::super::command();
        for command in all.get_subcommands().filter(|c| !c.is_hide_set()) {
            let options = command
                .get_arguments()
                .filter(|arg| arg.get_long().is_some());
            for arg in options.filter(|arg| arg.get_action().takes_values()) {
                let (name, long) = (command.get_name(), arg.get_long().unwrap_or_default());
                for value in ["-1", "x", "", "99999999999999999999999"] {
                    let words = ["capstan", name, &format!("--{long}={value}")];
                    let parsed = super::super::parse(words.into_iter().map(Into::into));
                    // Names and paths are anything; most commands then lack something else.
                    let Err(error) = parsed else { continue };
                    let told = error.to_string();
                    for words in ["invalid digit", "too large to fit", "cannot parse"] {
                        assert!(!told.contains(words), "{name} --{long}={value}: {told}");
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_have_fio_units() {
        assert_eq!(parse_bytes("4096"), Ok(4096));
        assert_eq!(parse_bytes("4k"), Ok(4096));
        assert_eq!(parse_bytes("16MiB"), Ok(16 << 20));
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
        for bad in ["", "k", "4x", "-1", "1.5k", "18446744073709551615k"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        let told = parse_bytes("16mb").unwrap_err();
        assert!(told.contains("decimal unit; write `16MiB`"), "{told}");
    }

    #[test]
    fn a_plain_number_is_seconds() {
        assert_eq!(parse_duration("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["soon", "-1", "99999999999", "18446744073709551615"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
        assert!(parse_time("0").is_err() && parse_time("0ms").is_err());
    }

    #[test]
    fn numbers_beyond_64_bits_are_told_the_range_as_smaller_ones_are() {
        let digits = "99999999999999999999";
        assert_eq!(
            parse_bytes(digits).unwrap_err(),
            "expected less than 2^64 bytes"
        );
        let told = parse_bytes(&format!("{digits}k")).unwrap_err();
        assert_eq!(told, "expected less than 2^64 bytes");
        assert!(
            parse_bs(digits)
                .unwrap_err()
                .starts_with("expected 512 to 4 MiB")
        );
        assert_eq!(
            parse_duration(digits).unwrap_err(),
            "expected at most a year"
        );
    }

    #[test]
    fn what_is_out_of_range_is_told_the_range() {
        let parse = |text: &str| {
            let command =
                Command::new("x").arg(Arg::new("n").value_parser(within::<u16>(2..=1024)));
            let parsed = command.try_get_matches_from(["x", text]);
            parsed.map(|matches| *matches.get_one::<u16>("n").unwrap())
        };
        assert_eq!(parse("2").unwrap(), 2);
        assert_eq!(parse("1024").unwrap(), 1024);
        for bad in ["1", "1025", "0", "65536", "99999999999999999999", "two", ""] {
            let error = parse(bad).unwrap_err().to_string();
            assert!(error.contains("expected 2 to 1024"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_lost_controller_is_waited_for_seconds_or_for_ever() {
        assert_eq!(parse_ctrl_loss_tmo("-1"), Ok(-1));
        assert_eq!(parse_ctrl_loss_tmo("0"), Ok(0));
        for bad in ["-2", "4294967296", "never"] {
            assert!(parse_ctrl_loss_tmo(bad).is_err(), "{bad}");
        }
    }
}
