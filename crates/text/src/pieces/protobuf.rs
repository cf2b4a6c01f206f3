//! The fields of a protobuf message, in the order of its bytes.
//!
//! Out of scope: what the fields mean (`model_proto`), and writing messages.

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Fixed64,
    Bytes(&'a [u8]),
}

/// A field: its number and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field<'a> {
    pub(super) number: u64,
    pub(super) value: Value<'a>,
}

/// The fields of a message. Ends after the first error.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Fields<'a> {
        Fields { rest: message }
    }

    fn field(&mut self) -> Result<Field<'a>, String> {
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Value::Fixed64
            }
            2 => {
                let length = self.varint()?;
                Value::Bytes(self.take(length)?)
            }
            5 => {
                let bytes = self.take(4)?;
                Value::Fixed32([bytes[0], bytes[1], bytes[2], bytes[3]])
            }
            kind => return Err(format!("a field has the unknown wire type {kind}")),
        };
        let number = tag >> 3;
        if number == 0 {
            return Err("a field has the number 0".into());
        }
        Ok(Field { number, value })
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("a number has more than 10 bytes".into())
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let taken =
            usize::try_from(length).ok().and_then(|length| self.rest.split_at_checked(length));
        let (taken, rest) = taken.ok_or_else(|| {
            format!("a field has {length} bytes, but the message ends after {}", self.rest.len())
        })?;
        self.rest = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> Field<'a> {
    pub(super) fn bytes(self) -> Result<&'a [u8], String> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(self.unexpected("bytes", other)),
        }
    }

    pub(super) fn text(self) -> Result<String, String> {
        let bytes = self.bytes()?;
        let text = std::str::from_utf8(bytes);
        Ok(text.map_err(|error| format!("field {}: {error}", self.number))?.to_owned())
    }

    pub(super) fn integer(self) -> Result<u64, String> {
        match self.value {
            Value::Varint(value) => Ok(value),
            other => Err(self.unexpected("an integer", other)),
        }
    }

    pub(super) fn flag(self) -> Result<bool, String> {
        Ok(self.integer()? != 0)
    }

    pub(super) fn float(self) -> Result<f32, String> {
        match self.value {
            Value::Fixed32(bytes) => Ok(f32::from_le_bytes(bytes)),
            other => Err(self.unexpected("a float", other)),
        }
    }

    fn unexpected(self, expected: &str, found: Value<'_>) -> String {
        let found = match found {
            Value::Varint(_) => "an integer",
            Value::Fixed32(_) => "4 bytes",
            Value::Fixed64 => "8 bytes",
            Value::Bytes(_) => "bytes",
        };
        format!("field {} is {found}, expected {expected}", self.number)
    }
}
