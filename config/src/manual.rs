//! The man page of the configuration file. It is `docs/configuration.md`, whose tables are compared
//! with the schema (`schema.rs`), in the macros of man(7).

use std::fmt::Write as _;

const REFERENCE: &str = include_str!("../../docs/configuration.md");
const SAMPLE: &str = include_str!("../samples/block-device.toml");

/// The file name of the page: it is of section 5.
pub const MANUAL_NAME: &str = "capstan-target.toml.5";

/// The text of the page.
#[must_use]
pub fn manual() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(
        ".ie \\n(.g .ds Aq \\(aq\n.el .ds Aq '\n\
         .TH capstan\\-target.toml 5 \"\" \"capstan\\-target {version}\" \"File formats\"\n\
         .SH NAME\ncapstan\\-target.toml \\- configuration of capstan\\-target(1)\n\
         .SH DESCRIPTION\n"
    );
    let mut lines = REFERENCE.lines().peekable();
    // Its title is the name of the page.
    lines.next_if(|line| line.starts_with("# "));
    for line in lines {
        if let Some(title) = line.strip_prefix("## ") {
            let _ = writeln!(page, ".SH {}", inline(title));
        } else if let Some(row) = line.strip_prefix("| `") {
            key(&mut page, row);
        } else if let Some(item) = line.strip_prefix("- ") {
            let _ = writeln!(page, ".IP \\(bu 2\n{}", inline(item));
        } else if line.is_empty() {
            page.push_str(".PP\n");
        } else if !line.starts_with('|') {
            let _ = writeln!(page, "{}", inline(line));
        }
    }
    page.push_str(".SH EXAMPLE\n.nf\n");
    for line in SAMPLE.lines() {
        let _ = writeln!(page, "{}", escaped(line));
    }
    page.push_str(
        ".fi\n.SH FILES\n.TP\n/etc/capstan/target.toml\nthe configuration of the service\n\
         .TP\n/etc/capstan/target.d/*.toml\nwhat is read behind it\n\
         .TP\n/etc/capstan/samples/*.toml\nsamples, of the packages\n\
         .SH SEE ALSO\ncapstan\\-target(1), capstan\\-target\\-check(1), \
         capstan\\-target\\-serve(1), capstan\\-target\\-config(1)\n",
    );
    page
}

/// A row of a table: key, type, default, range, meaning, and what a change needs.
fn key(page: &mut String, row: &str) {
    let cells: Vec<&str> = row.trim_end_matches(" |").split(" | ").collect();
    let [key, kind, default, range, meaning, change] = cells[..] else {
        // A test counts them.
        return;
    };
    let key = escaped(key.trim_end_matches('`'));
    let _ = writeln!(page, ".TP\n\\fB{key}\\fR ({})", inline(kind));
    let _ = writeln!(page, "{}.", inline(meaning));
    page.push_str(".br\n");
    match default {
        "required" => page.push_str("Required."),
        "—" => page.push_str("No default."),
        _ => {
            let _ = write!(page, "Default: {}.", inline(default));
        }
    }
    if range != "—" {
        let _ = write!(page, " Range: {}.", inline(range));
    }
    let _ = writeln!(page, " Change: {}.", inline(change));
}

/// Text with code, bold and emphasized words.
fn inline(text: &str) -> String {
    let mut line = String::with_capacity(text.len() + 32);
    let mut is_code = false;
    for (index, piece) in text.split('`').enumerate() {
        if index > 0 {
            is_code = !is_code;
            line.push_str(if is_code { "\\fB" } else { "\\fR" });
        }
        match is_code {
            true => line.push_str(&escape_all(piece)),
            false => {
                let mut is_bold = false;
                for (index, piece) in piece.split("**").enumerate() {
                    if index > 0 {
                        is_bold = !is_bold;
                        line.push_str(if is_bold { "\\fB" } else { "\\fR" });
                    }
                    emphasized(&mut line, piece);
                }
            }
        }
    }
    guarded(line)
}

/// Words between single asterisks.
fn emphasized(line: &mut String, text: &str) {
    for (index, piece) in text.split('*').enumerate() {
        match index {
            0 => {}
            _ if index % 2 == 1 => line.push_str("\\fI"),
            _ => line.push_str("\\fR"),
        }
        line.push_str(&escape_all(piece));
    }
}

/// A line as it is.
fn escaped(text: &str) -> String {
    guarded(escape_all(text))
}

fn escape_all(text: &str) -> String {
    text.replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\*(Aq")
}

/// What begins with a dot is no request.
fn guarded(line: String) -> String {
    match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::{inline, manual};
    use crate::schema::TableKind;

    #[test]
    fn every_key_of_the_schema_has_its_place_in_the_page() {
        let page = manual();
        let mut kinds = vec![TableKind::Root];
        let mut keys = 0;
        while let Some(kind) = kinds.pop() {
            let tables = kind.tables();
            kinds.extend(tables.iter().map(|(_, inner, _)| *inner));
            if kind == TableKind::Root {
                continue;
            }
            let heading = format!("\n.SH \\fB{}\\fR\n", kind.name());
            let (_, section) = page.split_once(&heading).expect(&heading);
            let (section, _) = section.split_once("\n.SH ").unwrap_or((section, ""));
            let inner = |key: &str| tables.iter().any(|(of, ..)| *of == key);
            for key in kind.keys().iter().filter(|key| !inner(key)) {
                let entry = format!(".TP\n\\fB{key}\\fR (");
                assert!(section.contains(&entry), "{heading} {key}: {section}");
                keys += 1;
            }
        }
        let entries = page.matches("\n.TP\n\\fB").count();
        assert_eq!(entries, keys, "and no other");
    }

    #[test]
    fn text_is_text_and_no_request() {
        assert_eq!(
            inline("`a-b` **c** *d* \\"),
            "\\fBa\\-b\\fR \\fBc\\fR \\fId\\fR \\e"
        );
        assert_eq!(inline(".TH"), "\\&.TH");
        assert_eq!(inline("'a"), "\\*(Aqa");
        assert_eq!(inline("`target.d/*.toml` a"), "\\fBtarget.d/*.toml\\fR a");
    }

    #[test]
    fn the_page_has_no_mistake_that_groff_tells() {
        let groff = Command::new("groff")
            .args(["-k", "-man", "-Tutf8", "-ww", "-z"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut groff) = groff else {
            eprintln!("SKIPPED: there is no groff");
            return;
        };
        let mut input = groff.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, manual().as_bytes()).unwrap();
        drop(input);
        let output = groff.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.is_empty(), "{told}");
    }
}
