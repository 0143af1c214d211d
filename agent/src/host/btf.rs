//! Reads field offsets from the kernel's BTF, the type data at `/sys/kernel/btf/vmlinux`.
//!
//! Small and strict: it finds structures, members (through unnamed inner ones), enumerators and the
//! arguments of tracepoints, and refuses what it does not understand. The format is described in
//! the kernel's `Documentation/bpf/btf.rst`. Bad data give an error, never a panic.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
/// Enough for any nesting of unnamed structures, or row of modifiers, in a kernel; it ends loops
/// in bad data.
const MAX_DEPTH: usize = 16;

const KIND_INT: u32 = 1;
const KIND_PTR: u32 = 2;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("not type data of this machine: the first bytes are not BTF's")]
    Magic,
    #[error("type data end inside {part}")]
    Truncated { part: &'static str },
    #[error("type data hold a type of kind {kind}, which is unknown")]
    Kind { kind: u32 },
    #[error("the kernel has no struct {name}")]
    NoStruct { name: String },
    #[error("the kernel's struct {name} has no field {field}")]
    NoField { name: String, field: String },
    #[error("the kernel has no enumerator {name}")]
    NoEnumerator { name: String },
    #[error("the kernel has no tracepoint {name}")]
    NoTracepoint { name: String },
}

/// What a tracepoint hands to its programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A pointer to the structure of that name.
    Struct(String),
    Integer,
    Other,
}

/// The kernel's types, over the bytes they were parsed from.
#[derive(Debug)]
pub struct Btf<'a> {
    data: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins in `data`, by type id; id 0 is `void`.
    types: Vec<usize>,
    structs: HashMap<&'a [u8], u32>,
    typedefs: HashMap<&'a [u8], u32>,
    enumerators: HashMap<&'a [u8], u32>,
}

#[derive(Clone, Copy)]
struct Type {
    at: usize,
    kind: u32,
    members: usize,
    has_bitfields: bool,
    /// A size, or the id of another type.
    size_or_type: u32,
}

impl<'a> Btf<'a> {
    pub fn parse(data: &'a [u8]) -> Result<Self, Error> {
        let header = Error::Truncated { part: "the header" };
        if data.get(..2) != Some(&MAGIC.to_ne_bytes()) {
            return Err(Error::Magic);
        }
        let word = |at| number(data, at).map(|n| n as usize);
        let (Some(start), Some(types_at), Some(types_len), Some(strings_at), Some(strings_len)) =
            (word(4), word(8), word(12), word(16), word(20))
        else {
            return Err(header);
        };
        let strings = data
            .get(start.saturating_add(strings_at)..)
            .and_then(|rest| rest.get(..strings_len))
            .ok_or(Error::Truncated {
                part: "the strings",
            })?;
        let mut at = start.saturating_add(types_at);
        let end = at.saturating_add(types_len);
        if end > data.len() {
            return Err(Error::Truncated { part: "the types" });
        }
        let mut btf = Self {
            data: &data[..end],
            strings,
            types: vec![0],
            structs: HashMap::new(),
            typedefs: HashMap::new(),
            enumerators: HashMap::new(),
        };
        while at < end {
            at = btf.take_type(at)?;
        }
        Ok(btf)
    }

    /// Indexes the type at `at`; where the next one begins.
    fn take_type(&mut self, at: usize) -> Result<usize, Error> {
        let truncated = Error::Truncated { part: "a type" };
        let Some(ty) = self.type_at(at) else {
            return Err(truncated);
        };
        let tail = match ty.kind {
            KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
            KIND_ARRAY => 12,
            KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => 12 * ty.members,
            KIND_ENUM | KIND_FUNC_PROTO => 8 * ty.members,
            // Pointers, forward declarations, modifiers, functions, floats.
            2 | 7..=12 | 16 | KIND_TYPE_TAG => 0,
            kind => return Err(Error::Kind { kind }),
        };
        let next = at + 12 + tail;
        if next > self.data.len() {
            return Err(truncated);
        }
        let id = u32::try_from(self.types.len()).unwrap_or(u32::MAX);
        self.types.push(at);
        let name = self.name(at)?;
        match ty.kind {
            KIND_STRUCT => {
                self.structs.entry(name).or_insert(id);
            }
            KIND_TYPEDEF => {
                self.typedefs.entry(name).or_insert(id);
            }
            KIND_ENUM => {
                for index in 0..ty.members {
                    let one = at + 12 + 8 * index;
                    let name = self.name(one)?;
                    let value = self.number(one + 4)?;
                    self.enumerators.entry(name).or_insert(value);
                }
            }
            _ => {}
        }
        Ok(next)
    }

    /// Where `field` lies in `struct name`, in bytes.
    pub fn offset(&self, name: &str, field: &str) -> Result<u32, Error> {
        let ty = self.structure(name)?;
        self.member(ty, field.as_bytes(), 0)?
            .ok_or_else(|| Error::NoField {
                name: name.to_owned(),
                field: field.to_owned(),
            })
    }

    /// Whether `struct name` has `field`; an error where there is no such structure.
    pub fn has_field(&self, name: &str, field: &str) -> Result<bool, Error> {
        let ty = self.structure(name)?;
        Ok(self.member(ty, field.as_bytes(), 0)?.is_some())
    }

    /// The size of `struct name`, in bytes.
    pub fn size(&self, name: &str) -> Result<u32, Error> {
        Ok(self.structure(name)?.size_or_type)
    }

    /// The value of an enumerator, whichever enumeration it is in.
    pub fn enumerator(&self, name: &str) -> Result<u32, Error> {
        self.enumerators
            .get(name.as_bytes())
            .copied()
            .ok_or_else(|| Error::NoEnumerator {
                name: name.to_owned(),
            })
    }

    /// What the tracepoint hands over: the arguments of `btf_trace_NAME` but the first, which is
    /// the tracing code's own.
    pub fn tracepoint(&self, name: &str) -> Result<Vec<Argument>, Error> {
        let missing = || Error::NoTracepoint {
            name: name.to_owned(),
        };
        let id = self
            .typedefs
            .get(format!("btf_trace_{name}").as_bytes())
            .ok_or_else(missing)?;
        let pointer = self.resolve(self.ty(*id)?.size_or_type)?;
        let function = match pointer {
            Some(pointer) if pointer.kind == KIND_PTR => self.resolve(pointer.size_or_type)?,
            _ => None,
        };
        let Some(function) = function.filter(|ty| ty.kind == KIND_FUNC_PROTO) else {
            return Err(missing());
        };
        (1..function.members)
            .map(|index| self.argument(self.number(function.at + 12 + 8 * index + 4)?))
            .collect()
    }

    fn argument(&self, id: u32) -> Result<Argument, Error> {
        let Some(ty) = self.resolve(id)? else {
            return Ok(Argument::Other);
        };
        match ty.kind {
            KIND_INT | KIND_ENUM => Ok(Argument::Integer),
            KIND_PTR => match self.resolve(ty.size_or_type)? {
                Some(target) if target.kind == KIND_STRUCT => Ok(Argument::Struct(
                    String::from_utf8_lossy(self.name(target.at)?).into_owned(),
                )),
                _ => Ok(Argument::Other),
            },
            _ => Ok(Argument::Other),
        }
    }

    fn structure(&self, name: &str) -> Result<Type, Error> {
        match self.structs.get(name.as_bytes()) {
            Some(id) => self.ty(*id),
            None => Err(Error::NoStruct {
                name: name.to_owned(),
            }),
        }
    }

    fn member(&self, of: Type, field: &[u8], depth: usize) -> Result<Option<u32>, Error> {
        if depth >= MAX_DEPTH || !matches!(of.kind, KIND_STRUCT | KIND_UNION) {
            return Ok(None);
        }
        for index in 0..of.members {
            let at = of.at + 12 + 12 * index;
            let name = self.name(at)?;
            let raw = self.number(at + 8)?;
            let bits = if of.has_bitfields {
                raw & 0x00ff_ffff
            } else {
                raw
            };
            if name == field {
                // A field of bits has no address.
                let is_bitfield = of.has_bitfields && raw >> 24 != 0;
                return Ok((!is_bitfield && bits % 8 == 0).then_some(bits / 8));
            }
            if name.is_empty()
                && let Some(inner) = self.resolve(self.number(at + 4)?)?
                && let Some(offset) = self.member(inner, field, depth + 1)?
            {
                return Ok((bits / 8).checked_add(offset));
            }
        }
        Ok(None)
    }

    /// The type behind names and modifiers; `None` for `void`.
    fn resolve(&self, mut id: u32) -> Result<Option<Type>, Error> {
        for _ in 0..MAX_DEPTH {
            if id == 0 {
                return Ok(None);
            }
            let ty = self.ty(id)?;
            match ty.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = ty.size_or_type;
                }
                _ => return Ok(Some(ty)),
            }
        }
        Ok(None)
    }

    fn ty(&self, id: u32) -> Result<Type, Error> {
        self.types
            .get(id as usize)
            .filter(|_| id != 0)
            .and_then(|at| self.type_at(*at))
            .ok_or(Error::Truncated {
                part: "a reference to a type",
            })
    }

    fn type_at(&self, at: usize) -> Option<Type> {
        let word = number(self.data, at + 4)?;
        Some(Type {
            at,
            kind: (word >> 24) & 0x1f,
            members: (word & 0xffff) as usize,
            has_bitfields: word >> 31 != 0,
            size_or_type: number(self.data, at + 8)?,
        })
    }

    fn number(&self, at: usize) -> Result<u32, Error> {
        number(self.data, at).ok_or(Error::Truncated { part: "a type" })
    }

    /// The name whose place in the strings is at `at`.
    fn name(&self, at: usize) -> Result<&'a [u8], Error> {
        let place = self.number(at)? as usize;
        self.strings
            .get(place..)
            .and_then(|rest| rest.split(|byte| *byte == 0).next())
            .ok_or(Error::Truncated { part: "a name" })
    }
}

fn number(data: &[u8], at: usize) -> Option<u32> {
    data.get(at..)?
        .first_chunk()
        .map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
pub(super) mod tests;
