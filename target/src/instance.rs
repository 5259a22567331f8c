//! What tells this boot of the machine, and what is made by this process, from those before.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use uuid::Uuid;

/// random(4): a UUID that the kernel makes when it starts.
const BOOT_ID_PATH: &str = "proc/sys/kernel/random/boot_id";
/// Under the kernel's identifier, which is for this machine alone.
const NAME: &[u8] = b"capstan-target";

/// The instance of the machine: the same in every process until the next boot, as are the caches
/// that acknowledged writes may be in. Where the kernel does not tell (a container without it), one
/// for this process: hosts then hear of a loss that need not be one, rather than of none.
///
/// # Errors
/// There are no random numbers either.
pub(crate) fn boot() -> anyhow::Result<Uuid> {
    boot_under(Path::new("/"))
}

fn boot_under(root: &Path) -> anyhow::Result<Uuid> {
    let told = fs::read_to_string(root.join(BOOT_ID_PATH));
    let boot = told.ok().and_then(|text| Uuid::try_parse(text.trim()).ok());
    match boot.filter(|boot| !boot.is_nil()) {
        Some(boot) => Ok(Uuid::new_v5(&boot, NAME)),
        None => {
            tracing::warn!(
                "/{BOOT_ID_PATH} cannot be read: hosts take a restart of this target for one of the machine, and their \
                 next Flush fails if it was to keep writes from before"
            );
            random()
        }
    }
}

/// An identity that nothing had before.
///
/// # Errors
/// There are no random numbers.
pub(crate) fn random() -> anyhow::Result<Uuid> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).context("no random numbers to make an identity of")?;
    Ok(uuid::Builder::from_random_bytes(random).into_uuid())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{BOOT_ID_PATH, boot_under};

    fn root(boot_id: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(BOOT_ID_PATH);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, boot_id).unwrap();
        root
    }

    #[test]
    fn a_boot_has_one_instance_and_another_boot_another() {
        let boots = [
            "2d9a6f34-9a43-4d0b-8a64-8f9b1d0c7e55\n",
            "3d9a6f34-9a43-4d0b-8a64-8f9b1d0c7e55\n",
        ];
        let [first, second] = boots.map(root);
        let of = |root: &tempfile::TempDir| boot_under(root.path()).unwrap();
        assert_eq!(of(&first), of(&first));
        assert_ne!(of(&first), of(&second));
        let here = boot_under(Path::new("/")).unwrap();
        assert_ne!(here, of(&first));
    }

    #[test]
    fn without_the_kernels_word_each_process_is_an_instance() {
        let nothing = tempfile::tempdir().unwrap();
        let nil = root("00000000-0000-0000-0000-000000000000");
        for root in [nothing.path(), nil.path(), root("gibberish").path()] {
            let [one, other] = [(), ()].map(|()| boot_under(root).unwrap());
            assert!(!one.is_nil());
            assert_ne!(one, other, "{}", root.display());
        }
    }
}
