//! Holds the layers that the head of `iwarp/mod.rs` lists: no file imports from one above its own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, the lowest first, and their modules.
const LAYERS: [(&str, &[&str]); 8] = [
    ("wire", &["wire", "config"]),
    ("memory", &["stag", "stag_keys", "piece"]),
    (
        "queues",
        &["completions", "fatal", "read", "receives", "sq"],
    ),
    ("core", &["core"]),
    ("link", &["link"]),
    ("driver", &["driver"]),
    (
        "provider",
        &["cm", "cq", "device", "memory", "provider", "qp", "srq"],
    ),
    ("testing", &["testing", "layers"]),
];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|(_, list)| list.contains(&module))
}

/// The modules of `iwarp` that the file of `module` (its path below `iwarp`) imports something of.
fn imports(text: &str, module: &[&str]) -> BTreeSet<String> {
    let comment = |line: &&str| line.trim_start().starts_with("//");
    let code: Vec<&str> = text.lines().filter(|line| !comment(line)).collect();
    let code = code.join("\n");
    let mut found = BTreeSet::new();
    for (at, path) in code.match_indices("crate::iwarp::") {
        found.extend(first_names(&code[at + path.len()..]));
    }
    for (at, _) in code.match_indices("use super::") {
        let line = code[..at].rfind('\n').map_or(0, |newline| newline + 1);
        // Inside of `mod tests`, `super` is the file itself.
        let mut depth = module.len() + usize::from(code[line..].starts_with(' '));
        let mut path = &code[at + "use ".len()..];
        while let Some(rest) = path.strip_prefix("super::") {
            depth = depth.saturating_sub(1);
            path = rest;
        }
        if depth == 0 {
            found.extend(first_names(path));
        }
    }
    found
}

/// The first names of a path, which may begin with a list in braces.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| -> String {
        let letters = |c: &char| c.is_alphanumeric() || *c == '_';
        path.trim_start().chars().take_while(letters).collect()
    };
    let Some(list) = path.strip_prefix('{') else {
        return vec![name(path)];
    };
    let mut names = Vec::new();
    let (mut depth, mut begin) = (0, 0);
    for (at, character) in list.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(name(&list[begin..at]));
                begin = at + 1;
                if character == '}' {
                    break;
                }
            }
            _ => {}
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

fn files(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, into);
        } else {
            into.push(path);
        }
    }
}

#[test]
fn no_file_imports_from_a_layer_above_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/iwarp");
    let mut all = Vec::new();
    files(&root, &mut all);
    assert!(all.len() > 40, "the files of {}", root.display());
    let mut wrong = Vec::new();
    for file in all {
        let path = file.strip_prefix(&root).unwrap().with_extension("");
        let path = path.to_str().unwrap();
        let module: Vec<&str> = path.split('/').filter(|name| *name != "mod").collect();
        // The root only lists its modules.
        let Some(first) = module.first() else {
            continue;
        };
        let Some(own) = layer_of(first) else {
            wrong.push(format!("{path} is in no layer: add it to LAYERS"));
            continue;
        };
        for import in imports(&fs::read_to_string(&file).unwrap(), &module) {
            match layer_of(&import) {
                Some(layer) if layer > own => wrong.push(format!(
                    "{path} ({}) imports from {import} ({})",
                    LAYERS[own].0, LAYERS[layer].0
                )),
                // The core sees no link, and a link no core.
                Some(_) if *first == "link" && import == "core" => {
                    wrong.push(format!("{path} imports from core"));
                }
                // Names of other crates' items, as in a macro, are none of `iwarp`.
                Some(_) | None => {}
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn imports_are_found_however_they_are_written() {
    let text = "\
use super::driver::Engine;
pub(super) use super::{link::Link, core::rx::{Rx, Received}, fatal};
// use super::provider;
fn f() -> crate::iwarp::qp::QpHandle {}
mod tests {
    use super::*;
    use super::super::cq::Completions;
}
";
    let found: Vec<String> = imports(text, &["sq"]).into_iter().collect();
    assert_eq!(found, ["core", "cq", "driver", "fatal", "link", "qp"]);
    // One level deeper all of them but the last two are of the file's own layer.
    let found: Vec<String> = imports(text, &["core", "rx"]).into_iter().collect();
    assert_eq!(found, ["qp"]);
}
