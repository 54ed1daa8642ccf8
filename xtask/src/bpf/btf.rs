//! A correction of the object's type information (BTF).
//!
//! Texts in maps (names of services, say) are `[i8; N]` arrays, as C's `char`
//! arrays are. `bpftool map dump` prints an array as text when its elements
//! are of an integer type that BTF marks as characters, and as a list of
//! numbers otherwise. rustc has no way to ask for that mark, so it is set here
//! on the type named `i8`.

use anyhow::{Context, Result, bail, ensure};
use object::{File, Object as _, ObjectSection as _};

const MAGIC: u16 = 0xeb9f;
const TYPE_SIZE: usize = 12;

/// `BTF_INT_CHAR`; the kernel wants exactly one encoding, so it replaces
/// `BTF_INT_SIGNED`.
const ENCODING_CHAR: u32 = 2;
const ENCODING_SHIFT: u32 = 24;
const ENCODING_MASK: u32 = 0x0f << ENCODING_SHIFT;

/// Marks the type `i8` of a BPF object as characters. An object that does not
/// use the type stays as it is.
pub(crate) fn mark_i8_as_text(object: &mut [u8]) -> Result<()> {
    let (start, size) = {
        let file = File::parse(&*object).context("not an ELF object")?;
        let section = file
            .section_by_name(".BTF")
            .context("it has no .BTF section")?;
        section
            .file_range()
            .context("its .BTF section has no content")?
    };
    let (start, size) = (usize::try_from(start)?, usize::try_from(size)?);
    let end = start
        .checked_add(size)
        .context(".BTF section out of bounds")?;
    let btf = object
        .get_mut(start..end)
        .context(".BTF section out of bounds")?;
    patch(btf)
}

/// The same on the content of a `.BTF` section.
fn patch(btf: &mut [u8]) -> Result<()> {
    let found = encodings_of(btf, "i8")?;
    for offset in found {
        let encoding = word(btf, offset)? & !ENCODING_MASK | ENCODING_CHAR << ENCODING_SHIFT;
        let place = btf
            .get_mut(offset..offset + 4)
            .context("BTF is cut short")?;
        place.copy_from_slice(&encoding.to_le_bytes());
    }
    Ok(())
}

/// Offsets of the encoding words of the integer types of this name.
fn encodings_of(btf: &[u8], wanted: &str) -> Result<Vec<usize>> {
    let header = Header::read(btf)?;
    let mut found = Vec::new();
    let mut offset = header.types.start;
    while offset < header.types.end {
        let (name, info) = (word(btf, offset)?, word(btf, offset + 4)?);
        let kind = info >> 24 & 0x1f;
        let members = usize::try_from(info & 0xffff)?;
        let body = offset + TYPE_SIZE;
        if kind == KIND_INT && header.string(btf, name)? == wanted.as_bytes() {
            found.push(body);
        }
        offset = body + body_size(kind, members)?;
    }
    ensure!(offset == header.types.end, "the last BTF type is cut short");
    Ok(found)
}

const KIND_INT: u32 = 1;

/// How many bytes follow the common part of a type, by its kind
/// (include/uapi/linux/btf.h).
fn body_size(kind: u32, members: usize) -> Result<usize> {
    Ok(match kind {
        // int; var; declaration tag
        KIND_INT | 14 | 17 => 4,
        // array
        3 => 12,
        // struct and union; data section; 64 bit enum
        4 | 5 | 15 | 19 => 12 * members,
        // enum; function prototype
        6 | 13 => 8 * members,
        // pointer, forward, typedef, volatile, const, restrict, function,
        // float, type tag
        2 | 7..=12 | 16 | 18 => 0,
        _ => bail!("unknown BTF kind {kind}"),
    })
}

/// The parts of a BTF section, as ranges of it.
struct Header {
    types: std::ops::Range<usize>,
    strings: std::ops::Range<usize>,
}

impl Header {
    fn read(btf: &[u8]) -> Result<Self> {
        let magic = btf.get(..2).context("BTF is cut short")?;
        ensure!(magic == MAGIC.to_le_bytes(), "not little-endian BTF");
        let length = usize::try_from(word(btf, 4)?)?;
        let part = |at: usize| -> Result<std::ops::Range<usize>> {
            let start = length
                .checked_add(usize::try_from(word(btf, at)?)?)
                .context("BTF header overflows")?;
            let end = start
                .checked_add(usize::try_from(word(btf, at + 4)?)?)
                .context("BTF header overflows")?;
            ensure!(end <= btf.len(), "BTF header points outside of the section");
            Ok(start..end)
        };
        Ok(Self {
            types: part(8)?,
            strings: part(16)?,
        })
    }

    fn string<'a>(&self, btf: &'a [u8], offset: u32) -> Result<&'a [u8]> {
        let strings = btf
            .get(self.strings.clone())
            .context("BTF strings out of bounds")?;
        let rest = strings
            .get(usize::try_from(offset)?..)
            .context("a BTF name out of bounds")?;
        let length = rest
            .iter()
            .position(|&byte| byte == 0)
            .context("a BTF name without an end")?;
        Ok(&rest[..length])
    }
}

fn word(btf: &[u8], offset: usize) -> Result<u32> {
    let bytes = btf
        .get(offset..)
        .and_then(|rest| rest.first_chunk::<4>())
        .context("BTF is cut short")?;
    Ok(u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: u32 = 1;

    fn int(name: u32, encoding: u32) -> Vec<u32> {
        vec![name, KIND_INT << 24, 1, encoding << ENCODING_SHIFT | 8]
    }

    /// One type of each kind before the integers, so that a wrong size of any
    /// would lead the walk astray.
    fn one_of_each() -> Vec<u32> {
        let plain = |kind: u32| vec![0, kind << 24, 0];
        let with = |kind: u32, members: u32, words: usize| {
            [vec![0, kind << 24 | members, 0], vec![0; words]].concat()
        };
        let mut types = Vec::new();
        for kind in [2, 7, 8, 9, 10, 11, 12, 16, 18] {
            types.extend(plain(kind));
        }
        types.extend(with(3, 0, 3));
        for kind in [4, 5, 15, 19] {
            types.extend(with(kind, 2, 6));
        }
        for kind in [6, 13] {
            types.extend(with(kind, 3, 6));
        }
        for kind in [14, 17] {
            types.extend(with(kind, 0, 1));
        }
        types
    }

    /// A section with these types and the names "i8" (1) and "u8" (4).
    fn section(types: &[u32]) -> Vec<u8> {
        let strings = b"\0i8\0u8\0";
        let types_size = u32::try_from(types.len() * 4).expect("small");
        let mut blob = Vec::from(MAGIC.to_le_bytes());
        blob.extend([1, 0]);
        for value in [
            24,
            0,
            types_size,
            types_size,
            u32::try_from(strings.len()).expect("small"),
        ] {
            blob.extend(value.to_le_bytes());
        }
        blob.extend(types.iter().flat_map(|value| value.to_le_bytes()));
        blob.extend(strings);
        blob
    }

    #[test]
    fn only_i8_becomes_characters() {
        let before = [one_of_each(), int(4, 0), int(1, SIGNED)].concat();
        let after = [one_of_each(), int(4, 0), int(1, ENCODING_CHAR)].concat();
        let mut blob = section(&before);
        patch(&mut blob).expect("a whole section");
        assert_eq!(blob, section(&after));
    }

    #[test]
    fn a_section_without_i8_is_left_alone() {
        let mut blob = section(&int(4, SIGNED));
        patch(&mut blob).expect("a whole section");
        assert_eq!(blob, section(&int(4, SIGNED)));
    }

    #[test]
    fn every_cut_is_an_error() {
        let whole = section(&[one_of_each(), int(1, SIGNED)].concat());
        for length in 0..whole.len() {
            assert!(
                patch(&mut whole[..length].to_vec()).is_err(),
                "cut at {length}"
            );
        }
    }

    #[test]
    fn an_unknown_kind_is_an_error() {
        assert!(patch(&mut section(&[0, 31 << 24, 0])).is_err());
    }
}
