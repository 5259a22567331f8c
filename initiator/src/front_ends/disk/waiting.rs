//! Processes that wait inside of a system call which looks for a path, as open(2) and stat(2) do.
//! They have nothing open yet, and keep the file system all the same.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use super::users::name_of;

/// What a system call has (syscall(2)).
const ARGUMENTS: usize = 6;
/// The least page there is: what is behind one may not be there.
const PAGE_BYTES: u64 = 4096;
const PAGE: usize = 4096;
/// A path is no longer than two pages that it may lie in (PATH_MAX of limits.h).
const PAGES: usize = 2;

/// The processes, with the path, that wait inside of a call for something below `folder`, as far as
/// the kernel shows their calls (proc_pid_syscall(5)). Their memory is looked at: a process that
/// waits for the same disk there keeps this one waiting.
#[must_use]
pub fn waiting_in(folder: &Path) -> Vec<String> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let found = processes.filter_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let process = entry.path();
        let tasks = fs::read_dir(process.join("task")).ok()?;
        let mut tasks = tasks.flatten().map(|task| task.path());
        let path = tasks.find_map(|task| path_waited_for(&process, &task, folder))?;
        Some(format!(
            "{} (pid {pid}), which waits inside of a call for {}",
            name_of(&process),
            path.display()
        ))
    });
    found.collect()
}

fn path_waited_for(process: &Path, task: &Path, folder: &Path) -> Option<PathBuf> {
    let stat = fs::read_to_string(task.join("stat")).ok()?;
    // In a wait that no signal ends, or only SIGKILL (proc_pid_stat(5)).
    if !stat.rsplit_once(") ")?.1.starts_with('D') {
        return None;
    }
    let call = fs::read_to_string(task.join("syscall")).ok()?;
    let memory = File::open(process.join("mem")).ok()?;
    let cwd = fs::read_link(process.join("cwd")).unwrap_or_default();
    let mut paths = arguments(&call)
        .into_iter()
        .filter_map(|address| text_at(&memory, address))
        .map(|text| plain(&cwd.join(OsStr::from_bytes(&text))));
    paths.find(|path| path.starts_with(folder))
}

/// The arguments of a call: behind its number, in hexadecimal. None of a task that is in none.
fn arguments(call: &str) -> Vec<u64> {
    let words = call.split_ascii_whitespace().skip(1).take(ARGUMENTS);
    words
        .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .filter(|&address| address >= PAGE_BYTES)
        .collect()
}

/// What is there until the first zero byte.
fn text_at(memory: &File, address: u64) -> Option<Vec<u8>> {
    let (mut text, mut at) = (Vec::new(), address);
    for _ in 0..PAGES {
        let mut page = [0; PAGE];
        let rest = usize::try_from(PAGE_BYTES - at % PAGE_BYTES).ok()?;
        let page = page.get_mut(..rest)?;
        let count = memory.read_at(page, at).ok()?;
        let page = page.get(..count)?;
        if let Some(end) = page.iter().position(|&byte| byte == 0) {
            text.extend_from_slice(page.get(..end)?);
            return (!text.is_empty()).then_some(text);
        }
        text.extend_from_slice(page);
        at = at.checked_add(u64::try_from(count).ok()?)?;
    }
    None
}

/// Without `.` and `..`, by its names alone.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{arguments, plain, text_at};
    use std::fs::File;
    use std::path::Path;

    #[test]
    fn the_arguments_of_a_call_are_those_that_may_be_addresses() {
        let call =
            "262 0xffffff9c 0x7ffc53e3f6d9 0x7ffc53e3dcc0 0x100 0x0 0x1 0x7ffc53e3dca8 0x7f\n";
        let found = arguments(call);
        assert_eq!(found, [0xffff_ff9c, 0x7ffc_53e3_f6d9, 0x7ffc_53e3_dcc0]);
        assert!(arguments("running\n").is_empty());
    }

    #[test]
    fn a_text_is_read_across_pages_and_ends_with_a_zero() {
        let memory = tempfile::tempfile().unwrap();
        let write = |bytes: &[u8], at| {
            std::os::unix::fs::FileExt::write_all_at(&memory, bytes, at).unwrap();
        };
        write(b"/a/b\0/c", 4094);
        write(&[0], 8191);
        let read = |memory: &File, at| text_at(memory, at);
        assert_eq!(read(&memory, 4094).unwrap(), b"/a/b");
        assert_eq!(read(&memory, 4099).unwrap(), b"/c");
        assert_eq!(read(&memory, 8191), None);
    }

    #[test]
    fn a_path_is_made_plain() {
        assert_eq!(plain(Path::new("/a/b/../c/./d")), Path::new("/a/c/d"));
    }
}
