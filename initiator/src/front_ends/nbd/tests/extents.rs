//! Block status: where zeroes are.

use super::*;
use crate::allocation::Allocated;

/// A volume of zeroes but for these bytes.
fn sparse(data: &[usize]) -> FakeQueue {
    let mut queue = FakeQueue::new(GEOMETRY, MEMORY_BYTES);
    for at in data {
        queue.data[*at] = 1;
    }
    queue
}

/// The extents of block statuses of `len` bytes from `offset` on.
fn status(queue: FakeQueue, flags: u16, offset: u64, len: u32) -> (Vec<(u32, u32)>, FakeQueue) {
    let input = request(CommandType::BLOCK_STATUS, flags, 1, offset, len);
    let mut run = Run::on(queue, true, input);
    run.finish(|pending| pending / 2);
    let mut replies = run.replies(|_| 0);
    assert_eq!((replies.len(), replies[0].error), (1, 0));
    run.assert_nothing_is_held();
    (replies.remove(0).extents, run.queue)
}

const REQ_ONE: u16 = 1 << 3;

#[test]
fn zeroes_are_told_from_data_wherever_it_is() {
    let granule = 64 << 10;
    let whole = u32::try_from(SIZE_BYTES).unwrap();
    // At the start of a granule, in its middle, at its end; two neighbours; the last byte.
    let data = [
        0,
        granule * 3 + 5000,
        granule * 6 - 1,
        granule * 6,
        (8 << 20) - 1,
    ];
    let (extents, queue) = status(sparse(&data), 0, 0, whole);
    let kib: Vec<_> = extents
        .iter()
        .map(|(len, state)| (len >> 10, *state))
        .collect();
    let end = (8192 - 7 * 64 - 64, 2);
    assert_eq!(
        kib,
        [(64, 0), (128, 2), (64, 0), (64, 2), (128, 0), end, (64, 0)]
    );
    // Any range of whole LBAs.
    let (extents, queue) = status(queue, 0, 512, (64 << 10) + 1024);
    assert_eq!(extents, [((64 << 10) + 1024, 2)]);
    let (extents, queue) = status(queue, 0, 0, 512);
    assert_eq!(extents, [(512, 0)]);
    // One extent is one, and nothing is told of what was not looked at.
    let (extents, queue) = status(queue, REQ_ONE, 64 << 10, whole - (64 << 10));
    assert_eq!(extents, [(128 << 10, 2)]);
    let (extents, queue) = status(queue, REQ_ONE, 5 * (64 << 10), 3 << 20);
    assert_eq!(extents, [(64 << 10, 0)]);
    let (extents, _) = status(queue, REQ_ONE, 7 * (64 << 10), 7 << 20);
    assert_eq!(extents, [(4 << 20, 2)]);
}

#[test]
fn data_is_known_by_its_heads() {
    let (extents, _) = status(queue(), 0, 0, 8 << 20);
    assert_eq!(extents, [(8 << 20, 0)]);
    let mut run = Run::on(
        queue(),
        true,
        request(CommandType::BLOCK_STATUS, 0, 1, 0, 8 << 20),
    );
    run.queue.capacity = 1024;
    run.feed();
    let lbas = run.queue.pending.iter().map(|(_, op, _)| op.range().1);
    assert_eq!(lbas.collect::<Vec<_>>(), [8; 128]);
    run.finish(|_| 0);
    // The first LBA of the volume is full of zeroes.
    assert_eq!(run.replies(|_| 0)[0].extents, [(8 << 20, 0)]);
}

#[test]
fn a_block_status_that_cannot_be_is_an_error() {
    let mut simple = Run::new(false, request(CommandType::BLOCK_STATUS, 0, 1, 0, 512));
    simple.finish(|_| 0);
    assert_eq!(simple.replies(|_| 0)[0].error, NbdError::Einval.code());
    let input = [
        request(CommandType::BLOCK_STATUS, 0, 1, 0, 0),
        request(CommandType::BLOCK_STATUS, 0, 2, SIZE_BYTES, 512),
        request(CommandType::BLOCK_STATUS, 0, 3, u64::MAX - 511, 512),
        request(CommandType::BLOCK_STATUS, 4, 4, 0, 512),
        request(CommandType::BLOCK_STATUS, 0, 5, 0, 1 << 20),
        request(CommandType::READ, 0, 6, 0, 512),
    ]
    .concat();
    let mut run = Run::on(sparse(&[]), true, input);
    // In the second pass: its head is readable.
    run.queue.bad_lba = Some(100);
    run.finish(|_| 0);
    let mut errors: Vec<_> = run
        .replies(|_| 0)
        .iter()
        .map(|r| (r.cookie, r.error))
        .collect();
    errors.sort_unstable();
    assert_eq!(errors, [(1, 22), (2, 22), (3, 22), (4, 22), (5, 5), (6, 0)]);
    run.assert_nothing_is_held();
    // Its client leaves in the middle.
    let input = request(CommandType::BLOCK_STATUS, 0, 1, 0, 8 << 20).repeat(3);
    let mut run = Run::on(sparse(&[]), true, input);
    run.queue.capacity = 3;
    run.feed();
    run.transmission.break_off("gone");
    run.finish(|_| 0);
    run.assert_nothing_is_held();
    // The association ends in the middle: what else is asked is answered too.
    let mut run = Run::on(
        sparse(&[]),
        true,
        request(CommandType::BLOCK_STATUS, 0, 1, 0, 1 << 20),
    );
    run.input.extend(write(2, 0, &[7; 512]));
    run.queue.capacity = 3;
    run.feed();
    run.queue.gone = true;
    run.finish(|_| 0);
    let replies = run.replies(|_| 0);
    assert!(
        replies
            .iter()
            .all(|r| r.error == NbdError::Eshutdown.code()),
        "{replies:?}"
    );
    assert_eq!(replies.len(), 2);
    run.assert_nothing_is_held();
}

/// The same, of a controller that tells what is allocated.
fn telling(data: &[usize], allocated: Option<Allocated>) -> FakeQueue {
    let mut queue = sparse(data);
    queue.geometry.holes = true;
    queue.allocated = allocated;
    queue
}

const HOLE: u32 = 3;

#[test]
fn holes_are_told_without_reading_and_zeroes_in_what_is_allocated_with() {
    let whole = u32::try_from(SIZE_BYTES).unwrap();
    // In LBAs of 512 bytes: two extents, the second of which is full of zeroes but for its end.
    let allocated = Allocated {
        extents: vec![2048..2304, 10_240..10_496],
        end: 16_384,
    };
    let data = [1 << 20, (1 << 20) + (64 << 10), 10_496 * 512 - 1];
    let (extents, queue) = status(telling(&data, Some(allocated.clone())), 0, 0, whole);
    let expected = [
        (1 << 20, HOLE),
        (128 << 10, 0),
        (4096 * 1024 - (128 << 10), HOLE),
        (64 << 10, 2),
        (64 << 10, 0),
        (whole - 10_496 * 512, HOLE),
    ];
    assert_eq!(extents, expected);
    // Four heads, and the two granules that begin with zeroes.
    assert_eq!(queue.lbas_read, 4 * 8 + 2 * 128);
    // A range that begins inside an extent.
    let (extents, queue) = status(queue, 0, 2303 * 512, 1024);
    assert_eq!(extents, [(512, 2), (512, HOLE)]);
    // One extent: a hole costs nothing at all, and what is behind data is not looked at.
    let before = queue.lbas_read;
    let (extents, queue) = status(queue, REQ_ONE, 0, whole);
    assert_eq!((extents, queue.lbas_read), (vec![(1 << 20, HOLE)], before));
    let (extents, queue) = status(queue, REQ_ONE, 1 << 20, 7 << 20);
    assert_eq!(extents, [(128 << 10, 0)]);
    assert_eq!(queue.lbas_read, before + 16);
}

#[test]
fn nothing_is_told_of_what_the_controller_did_not_tell() {
    let first = 2048..2304;
    let part = Allocated {
        extents: vec![first],
        end: 2304,
    };
    let (extents, _) = status(telling(&[1 << 20], Some(part)), 0, 0, 8 << 20);
    let expected = [(1 << 20, HOLE), (64 << 10, 0), (64 << 10, 2)];
    assert_eq!(extents, expected);
    // It does not tell, or nonsense: it is read.
    let (extents, queue) = status(telling(&[0], None), 0, 0, 1 << 20);
    assert_eq!(extents, [(64 << 10, 0), (960 << 10, 2)]);
    assert!(queue.lbas_read > 1920);
    // All of it is a hole.
    let none = Allocated {
        extents: vec![],
        end: 16_384,
    };
    let (extents, queue) = status(telling(&[], Some(none)), 0, 0, 8 << 20);
    assert_eq!((extents, queue.lbas_read), (vec![(8 << 20, HOLE)], 0));
}

#[test]
fn clients_may_leave_while_the_controller_is_asked() {
    let input = request(CommandType::BLOCK_STATUS, 0, 1, 0, 8 << 20).repeat(3);
    for answered in [false, true] {
        let mut run = Run::on(telling(&[], None), true, input.clone());
        run.feed();
        assert_eq!(run.queue.asked.len(), 3);
        if answered {
            let (token, slba, nlb) = run.queue.asked.remove(0);
            assert_eq!((slba, nlb), (0, 16_384));
            run.transmission.looked_up(token, None);
            run.feed();
        }
        run.transmission.break_off("gone");
        run.finish(|_| 0);
        run.assert_nothing_is_held();
    }
}
