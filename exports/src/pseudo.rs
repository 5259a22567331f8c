//! The pseudo file system of NFSv4 (RFC 8881, 7.3): directories that only lead to exports.
//!
//! An export at `/a/b` makes the directories `/` and `/a`. An export whose path is below another
//! one's is reached through that one, at its mount point, and is not in here.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use crate::attributes::Time;
use crate::handle::{ExportId, PseudoId};
use crate::name::{Name, NameProblem, NameRule};

/// Most names of a path: what a client would have to look up one by one.
pub const PATH_NAMES: usize = 64;

/// Cookies below this one are not those of entries (RFC 8881, 18.23.3: 0 is the start, and 1 and 2
/// are not used).
const FIRST_COOKIE: u64 = 3;

/// What a name of the pseudo file system stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PseudoEntry {
    /// A directory.
    Directory(PseudoId),
    /// The root of an export.
    Export(ExportId),
}

/// Why the paths make no tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PseudoError {
    /// Not an absolute path of names.
    #[error("{path:?} is no path of an export: {problem}; write one such as /projects")]
    Path {
        /// What was written.
        path: String,
        /// What is wrong with it.
        problem: PathProblem,
    },
    /// Two exports have it.
    #[error("two exports are at {0}; move one of them")]
    Twice(String),
    /// Two paths have the same id, by a chance of 2^-64.
    #[error("{0} cannot be told from another path of an export; rename it")]
    Collision(String),
}

/// What is wrong with the path of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    /// It has no `/` in front.
    #[error("it does not begin with /")]
    Relative,
    /// A name of it is none.
    #[error("{0}")]
    Name(#[from] NameProblem),
    /// It has too many names.
    #[error("it has more than {PATH_NAMES} names")]
    Deep,
}

#[derive(Debug, Default)]
struct Directory {
    parent: Option<PseudoId>,
    entries: BTreeMap<Box<[u8]>, PseudoEntry>,
}

/// The directories above the exports.
#[derive(Debug)]
pub struct PseudoTree {
    root: PseudoEntry,
    directories: HashMap<PseudoId, Directory>,
    above: HashMap<ExportId, PseudoId>,
    change: u64,
    since: Time,
}

/// Export whose path is below the path of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NestedExport {
    /// The export that is not in the tree.
    pub inner: ExportId,
    /// The export through which it is reached.
    pub outer: ExportId,
}

/// The names of an absolute path; `/` has none.
///
/// # Errors
/// Where it is no such path.
pub fn path_names(path: &str) -> Result<Vec<Name<'_>>, PseudoError> {
    let bad = |problem| PseudoError::Path {
        path: path.to_owned(),
        problem,
    };
    let rest = path
        .strip_prefix('/')
        .ok_or_else(|| bad(PathProblem::Relative))?;
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<Name<'_>> = rest
        .split('/')
        .map(|name| Name::new(name.as_bytes(), NameRule::Utf8))
        .collect::<Result<_, _>>()
        .map_err(|problem| bad(problem.into()))?;
    if names.len() > PATH_NAMES {
        return Err(bad(PathProblem::Deep));
    }
    Ok(names)
}

/// Eight bytes of a digest of a path: the same in every run.
fn digest(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    blake3::Hasher::new()
        .update(bytes)
        .finalize_xof()
        .fill(&mut first);
    u64::from_be_bytes(first)
}

fn id_of(names: &[Name<'_>]) -> PseudoId {
    let mut path = Vec::new();
    for name in names {
        path.push(b'/');
        path.extend_from_slice(name.bytes());
    }
    PseudoId(digest(&path))
}

impl PseudoTree {
    /// The directories that lead to `exports`, and the exports that are below others.
    ///
    /// # Errors
    /// Where a path is none, or not its export's alone.
    pub fn new(exports: &[(&str, ExportId)]) -> Result<(Self, Vec<NestedExport>), PseudoError> {
        let mut sorted = Vec::with_capacity(exports.len());
        for &(path, id) in exports {
            sorted.push((path_names(path)?, path, id));
        }
        // A path comes behind those that it is below.
        sorted.sort_by(|a, b| {
            let (a, b) = (a.0.iter(), b.0.iter());
            a.map(Name::bytes).cmp(b.map(Name::bytes))
        });
        let mut tree = Self {
            root: PseudoEntry::Directory(id_of(&[])),
            directories: HashMap::from([(id_of(&[]), Directory::default())]),
            above: HashMap::new(),
            change: 0,
            since: Time::now(),
        };
        let mut nested = Vec::new();
        let mut paths = HashMap::from([(id_of(&[]), Vec::new())]);
        let mut seen = blake3::Hasher::new();
        for (names, path, id) in &sorted {
            seen.update(&id.0.to_be_bytes())
                .update(path.as_bytes())
                .update(&[0]);
            match tree.outer(names) {
                Some((outer, depth)) if depth < names.len() => {
                    nested.push(NestedExport { inner: *id, outer });
                }
                Some(_) => return Err(PseudoError::Twice((*path).to_owned())),
                None => tree.insert(names, path, *id, &mut paths)?,
            }
        }
        let mut change = [0; 8];
        seen.finalize_xof().fill(&mut change);
        tree.change = u64::from_be_bytes(change);
        Ok((tree, nested))
    }

    /// The export that the path leads through or to, and how many names lead there.
    fn outer(&self, names: &[Name<'_>]) -> Option<(ExportId, usize)> {
        let mut at = self.root;
        for (depth, name) in names.iter().enumerate() {
            match at {
                PseudoEntry::Export(id) => return Some((id, depth)),
                PseudoEntry::Directory(id) => at = self.lookup(id, *name)?,
            }
        }
        match at {
            PseudoEntry::Export(id) => Some((id, names.len())),
            PseudoEntry::Directory(_) => None,
        }
    }

    fn insert<'a>(
        &mut self,
        names: &[Name<'a>],
        path: &str,
        export: ExportId,
        paths: &mut HashMap<PseudoId, Vec<Name<'a>>>,
    ) -> Result<(), PseudoError> {
        let Some((last, above)) = names.split_last() else {
            self.root = PseudoEntry::Export(export);
            self.directories.clear();
            return Ok(());
        };
        let mut parent = id_of(&[]);
        for depth in 1..=above.len() {
            let names = above.get(..depth).unwrap_or(above);
            let id = id_of(names);
            if paths.entry(id).or_insert_with(|| names.to_vec()) != names {
                return Err(PseudoError::Collision(path.to_owned()));
            }
            self.directories.entry(id).or_default().parent = Some(parent);
            self.enter(parent, names.last(), PseudoEntry::Directory(id));
            parent = id;
        }
        self.enter(parent, Some(last), PseudoEntry::Export(export));
        self.above.insert(export, parent);
        Ok(())
    }

    fn enter(&mut self, directory: PseudoId, name: Option<&Name<'_>>, entry: PseudoEntry) {
        if let (Some(directory), Some(name)) = (self.directories.get_mut(&directory), name) {
            directory.entries.insert(name.bytes().into(), entry);
        }
    }

    /// What PUTROOTFH stands for: a directory, or the export at `/`.
    pub const fn root(&self) -> PseudoEntry {
        self.root
    }

    /// Whether there is such a directory.
    pub fn contains(&self, directory: PseudoId) -> bool {
        self.directories.contains_key(&directory)
    }

    /// What `name` stands for in the directory.
    pub fn lookup(&self, directory: PseudoId, name: Name<'_>) -> Option<PseudoEntry> {
        self.directories
            .get(&directory)?
            .entries
            .get(name.bytes())
            .copied()
    }

    /// The directory above; the root has none.
    pub fn parent(&self, directory: PseudoId) -> Option<PseudoId> {
        self.directories.get(&directory)?.parent
    }

    /// The directory that an export's root is in; none for an export at `/` or below another one.
    pub fn above_export(&self, export: ExportId) -> Option<PseudoId> {
        self.above.get(&export).copied()
    }

    /// Its path; empty for the root, and where there is no such directory.
    pub fn path(&self, directory: PseudoId) -> Vec<u8> {
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = directory;
        for _ in 0..PATH_NAMES {
            let parent = self.parent(at);
            let Some(held) = parent.and_then(|parent| self.directories.get(&parent)) else {
                break;
            };
            let is_it = |entry: &PseudoEntry| *entry == PseudoEntry::Directory(at);
            let named = held.entries.iter().find(|(_, entry)| is_it(entry));
            names.extend(named.map(|(name, _)| &**name));
            at = parent.unwrap_or(at);
        }
        let mut path = Vec::new();
        for name in names.into_iter().rev() {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path
    }

    /// Number of links of the directory: its name, `.`, and `..` of each directory in it.
    pub fn link_count(&self, directory: PseudoId) -> u32 {
        let entries = self
            .directories
            .get(&directory)
            .map_or(0, |held| held.entries.len());
        u32::try_from(entries).unwrap_or(u32::MAX).saturating_add(2)
    }

    /// The directory's entries behind `cookie` (0 for all), each with its own cookie. Cookies hold
    /// for as long as [`change`](Self::change) stays the same.
    pub fn entries(
        &self,
        directory: PseudoId,
        cookie: u64,
    ) -> impl Iterator<Item = (u64, &[u8], PseudoEntry)> {
        let skipped = cookie.saturating_add(1).saturating_sub(FIRST_COOKIE);
        let entries = self.directories.get(&directory).map(|held| {
            let all = (Bound::<Box<[u8]>>::Unbounded, Bound::Unbounded);
            held.entries.range::<Box<[u8]>, _>(all)
        });
        let numbered = (FIRST_COOKIE..).zip(entries.into_iter().flatten());
        numbered
            .skip(usize::try_from(skipped).unwrap_or(usize::MAX))
            .map(|(cookie, (name, entry))| (cookie, &**name, *entry))
    }

    /// A number that is another one when other exports or paths are there, and the same in every
    /// run while they are: verifier of the cookies of all directories.
    pub const fn change(&self) -> u64 {
        self.change
    }

    /// When the tree was made, at the start or by a reload: what a client may see of it can be
    /// something else since, also with the same exports.
    pub const fn since(&self) -> Time {
        self.since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(exports: &[(&str, u32)]) -> Result<(PseudoTree, Vec<NestedExport>), PseudoError> {
        let exports: Vec<_> = exports
            .iter()
            .map(|&(path, id)| (path, ExportId(id)))
            .collect();
        PseudoTree::new(&exports)
    }

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes(), NameRule::Utf8).unwrap()
    }

    fn root(tree: &PseudoTree) -> PseudoId {
        match tree.root() {
            PseudoEntry::Directory(id) => id,
            PseudoEntry::Export(id) => panic!("the root is {id:?}"),
        }
    }

    fn directory(tree: &PseudoTree, at: PseudoId, text: &str) -> PseudoId {
        match tree.lookup(at, name(text)) {
            Some(PseudoEntry::Directory(id)) => id,
            other => panic!("{text} is {other:?}"),
        }
    }

    #[test]
    fn directories_lead_to_the_exports() {
        let exports = [("/projects", 1), ("/a/b", 2), ("/a/c/d", 3)];
        let (tree, nested) = tree(&exports).unwrap();
        assert!(nested.is_empty());
        let root = root(&tree);
        let export = |id| Some(PseudoEntry::Export(ExportId(id)));
        assert_eq!(tree.lookup(root, name("projects")), export(1));
        assert_eq!(tree.lookup(root, name("b")), None);
        let a = directory(&tree, root, "a");
        assert_eq!(tree.lookup(a, name("b")), export(2));
        let c = directory(&tree, a, "c");
        assert_eq!(tree.lookup(c, name("d")), export(3));
        assert_eq!(tree.parent(c), Some(a));
        assert_eq!(tree.parent(a), Some(root));
        assert_eq!(tree.parent(root), None);
        assert_eq!((tree.path(c), tree.path(root)), (b"/a/c".to_vec(), vec![]));
        assert_eq!(tree.above_export(ExportId(3)), Some(c));
        assert_eq!(tree.above_export(ExportId(1)), Some(root));
        assert_eq!(tree.link_count(a), 4);
        assert!(tree.contains(c) && !tree.contains(PseudoId(7)));
    }

    #[test]
    fn entries_go_on_behind_any_cookie() {
        let exports = [("/b/x", 1), ("/a", 2), ("/c", 3)];
        let (tree, _) = tree(&exports).unwrap();
        let from = |cookie| -> Vec<(u64, String)> {
            let entries = tree.entries(root(&tree), cookie);
            entries
                .map(|(cookie, name, _)| (cookie, name.escape_ascii().to_string()))
                .collect()
        };
        let all: Vec<_> = [(3, "a"), (4, "b"), (5, "c")]
            .map(|(at, name)| (at, name.into()))
            .into();
        assert_eq!(from(0), all);
        assert_eq!(from(2), all);
        assert_eq!(from(3), all[1..]);
        assert_eq!(from(5), []);
        assert_eq!(from(u64::MAX), []);
        assert_eq!(tree.entries(PseudoId(1), 0).count(), 0);
    }

    #[test]
    fn ids_and_change_are_the_same_in_every_run_and_any_order() {
        let (one, _) = tree(&[("/a/b", 1), ("/c", 2)]).unwrap();
        let (other, _) = tree(&[("/c", 2), ("/a/b", 1)]).unwrap();
        let id = directory(&one, root(&one), "a");
        assert_eq!(id, directory(&other, root(&other), "a"));
        // Clients have it: it may not become another one.
        assert_eq!(root(&one), PseudoId(0xaf13_49b9_f5f9_a1a6));
        assert_eq!(one.change(), other.change());
        let (more, _) = tree(&[("/a/b", 1), ("/c", 2), ("/d", 3)]).unwrap();
        assert_ne!(one.change(), more.change());
        assert_eq!(id, directory(&more, root(&more), "a"));
    }

    #[test]
    fn an_export_below_another_is_reached_through_it() {
        let (tree_of, nested) = tree(&[("/a/b/c", 2), ("/a", 1), ("/a-b", 3)]).unwrap();
        assert_eq!(
            nested,
            [NestedExport {
                inner: ExportId(2),
                outer: ExportId(1)
            }]
        );
        assert_eq!(tree_of.entries(root(&tree_of), 0).count(), 2);
        assert_eq!(tree_of.above_export(ExportId(2)), None);
        let (whole, nested) = tree(&[("/a", 1), ("/", 9)]).unwrap();
        assert_eq!(whole.root(), PseudoEntry::Export(ExportId(9)));
        assert_eq!(
            nested,
            [NestedExport {
                inner: ExportId(1),
                outer: ExportId(9)
            }]
        );
    }

    #[test]
    fn paths_that_are_none_are_told() {
        for (path, said) in [
            ("a", "does not begin with /"),
            ("", "does not begin with /"),
            ("/a/", "the name is empty"),
            ("//a", "the name is empty"),
            ("/a/../b", "the directory itself or its parent"),
        ] {
            let error = tree(&[(path, 1)]).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains(path), "{error}");
        }
        let deep = "/x".repeat(65);
        assert!(
            tree(&[(&deep, 1)])
                .unwrap_err()
                .to_string()
                .contains("more than 64 names")
        );
        assert!(tree(&[(&deep[2..], 1)]).is_ok());
        let twice = tree(&[("/a", 1), ("/a", 2)]).unwrap_err();
        assert_eq!(twice, PseudoError::Twice("/a".into()));
        let twice = tree(&[("/", 1), ("/", 2)]).unwrap_err();
        assert_eq!(twice, PseudoError::Twice("/".into()));
    }
}
