extern crate std;
use super::*;
use std::string::ToString;

#[test]
fn integers_are_big_endian() {
    let mut bytes = std::vec::Vec::new();
    bytes.extend([0x01, 0x02, 0x03, 0x04]);
    bytes.extend([0xFF, 0xFF, 0xFF, 0xFE]);
    bytes.extend([0, 0, 0, 1, 0, 0, 0, 2]);
    bytes.extend([0xFF; 8]);
    let mut reader = Reader::new(&bytes);
    assert_eq!(reader.u32("a"), Ok(0x0102_0304));
    assert_eq!(reader.i32("b"), Ok(-2));
    assert_eq!(reader.u64("c"), Ok(0x1_0000_0002));
    assert_eq!(reader.i64("d"), Ok(-1));
    assert_eq!(reader.finish(), Ok(()));
}

#[test]
fn a_short_stream_says_what_it_lacks() {
    let mut reader = Reader::new(&[0, 0, 0]);
    assert_eq!(
        reader.u32("xid").unwrap_err().to_string(),
        "xid at offset 0 needs 4 bytes, 3 are left: refuse the message as undecodable"
    );
    let mut reader = Reader::new(&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0, 0]);
    assert_eq!(
        reader.opaque("name", 255),
        Err(ReadError::Short {
            field: "name",
            offset: 4,
            needed_bytes: 8,
            left_bytes: 7
        })
    );
}

#[test]
fn a_boolean_is_0_or_1() {
    for (value, read) in [(0, Some(false)), (1, Some(true)), (2, None)] {
        let bytes = [0, 0, 0, value];
        assert_eq!(Reader::new(&bytes).bool("follows").ok(), read);
    }
    assert_eq!(
        Reader::new(&[0, 0, 0, 2]).bool("follows"),
        Err(ReadError::Invalid {
            field: "follows",
            offset: 0,
            value: 2,
            expected: "0 or 1"
        })
    );
}

#[test]
fn opaque_data_ends_before_its_padding_which_may_hold_anything() {
    let mut reader = Reader::new(&[0, 0, 0, 5, 1, 2, 3, 4, 5, 0xAA, 0xBB, 0xCC, 7, 8, 9, 10]);
    assert_eq!(reader.opaque("data", 5), Ok(&[1, 2, 3, 4, 5][..]));
    assert_eq!(reader.array("next"), Ok([7, 8, 9, 10]));
    assert_eq!(reader.finish(), Ok(()));
    let mut reader = Reader::new(&[7, 8, 9, 0xAA]);
    assert_eq!(reader.array("three"), Ok([7, 8, 9]));
    assert_eq!(reader.left_bytes(), 0);
}

#[test]
fn counts_are_bounded_and_covered_by_what_is_left() {
    let bytes = [0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(Reader::new(&bytes).count("gids", 16, 2), Ok(3));
    assert_eq!(
        Reader::new(&bytes)
            .count("gids", 2, 1)
            .unwrap_err()
            .to_string(),
        "gids at offset 0 counts 3, expected at most 2: refuse the message as undecodable"
    );
    assert_eq!(
        Reader::new(&bytes).count("gids", 16, 4),
        Err(ReadError::Short {
            field: "gids",
            offset: 4,
            needed_bytes: 12,
            left_bytes: 8
        })
    );
    let most = [0xFF; 8];
    assert!(matches!(
        Reader::new(&most).count("gids", u32::MAX, usize::MAX),
        Err(ReadError::Short { .. })
    ));
    assert!(matches!(
        Reader::new(&most).opaque("data", u32::MAX),
        Err(ReadError::Short { .. })
    ));
}

/// A count of 5 at offset 4, the data reduced, and 4 bytes behind it.
const REDUCED: [u8; 12] = [0, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0, 9];

#[test]
fn the_stream_goes_on_right_behind_the_count_of_a_reduced_item() {
    // Without and with its padding (RFC 8166, section 3.4).
    for length_bytes in [5, 8] {
        let items = [ReducedItem {
            position: 8,
            length_bytes,
        }];
        let mut reader = Reader::with_reduced(&REDUCED, &items);
        assert_eq!(reader.u32("before"), Ok(1));
        assert_eq!(
            reader.data_item("data", 1024),
            Ok(DataItem::Reduced {
                index: 0,
                length_bytes: 5
            })
        );
        assert_eq!((reader.offset(), reader.position()), (8, 16));
        assert_eq!(reader.u32("behind"), Ok(9));
        assert_eq!(reader.finish(), Ok(()));
    }
}

#[test]
fn the_position_of_a_second_item_counts_the_first_and_its_padding() {
    let items = [(4, 5), (16, 1)].map(|(position, length_bytes)| ReducedItem {
        position,
        length_bytes,
    });
    let bytes = [0, 0, 0, 5, 0, 0, 0, 1];
    let mut reader = Reader::with_reduced(&bytes, &items);
    assert!(reader.data_item("first", 8).is_ok());
    assert_eq!(
        reader.data_item("second", 8),
        Ok(DataItem::Reduced {
            index: 1,
            length_bytes: 1
        })
    );
    assert_eq!((reader.position(), reader.finish()), (20, Ok(())));
}

#[test]
fn a_reduced_item_lies_nowhere_else() {
    // At a field, within one, behind everything, and within data that is inline.
    for position in [0, 2, 3] {
        let items = [ReducedItem {
            position,
            length_bytes: 4,
        }];
        let mut reader = Reader::with_reduced(&REDUCED, &items);
        assert_eq!(
            reader.u32("before"),
            Err(ReadError::Misplaced {
                field: "before",
                at: 0,
                position
            })
        );
    }
    let items = [ReducedItem {
        position: 12,
        length_bytes: 4,
    }];
    let mut reader = Reader::with_reduced(&REDUCED, &items);
    assert_eq!(reader.opaque_fixed("all", 12), Ok(&REDUCED[..]));
    assert!(matches!(reader.finish(), Err(ReadError::Misplaced { .. })));
    let inline = [0, 0, 0, 4, 1, 2, 3, 4];
    let items = [ReducedItem {
        position: 6,
        length_bytes: 4,
    }];
    assert!(matches!(
        Reader::with_reduced(&inline, &items).data_item("data", 8),
        Err(ReadError::Misplaced { .. })
    ));
}

#[test]
fn a_reduced_item_is_as_long_as_its_count_says() {
    for length_bytes in [0, 4, 6, 7, 9, u32::MAX] {
        let items = [ReducedItem {
            position: 8,
            length_bytes,
        }];
        let mut reader = Reader::with_reduced(&REDUCED, &items);
        assert_eq!(reader.u32("before"), Ok(1));
        assert_eq!(
            reader.data_item("data", 1024),
            Err(ReadError::ReducedLength {
                field: "data",
                position: 8,
                count: 5,
                length_bytes
            })
        );
    }
}

#[test]
fn data_without_a_reduced_item_is_inline() {
    let bytes = [0, 0, 0, 2, 8, 9, 0, 0];
    assert_eq!(
        Reader::new(&bytes).data_item("data", 2),
        Ok(DataItem::Inline(&[8, 9]))
    );
    // A later item does not disturb it.
    let items = [ReducedItem {
        position: 12,
        length_bytes: 1,
    }];
    let bytes = [0, 0, 0, 2, 8, 9, 0, 0, 0, 0, 0, 1];
    let mut reader = Reader::with_reduced(&bytes, &items);
    assert_eq!(reader.data_item("data", 2), Ok(DataItem::Inline(&[8, 9])));
    assert!(reader.data_item("next", 1).is_ok());
    assert_eq!(reader.finish(), Ok(()));
}
