//! [`Fault`]: a device that is broken on purpose, for tests of what finds such devices.

use std::str::FromStr;
use std::time::Duration;

use fulmen_pjrt::abi::*;

use crate::error::PodError;

/// What is wrong with the results of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One bit of the first result is wrong.
    FlipBit,
    /// Results in f32 have the digits of bf16.
    LowPrecision,
    /// No donated argument's memory is used for a result.
    DropDonation,
    /// The first two devices have each other's results.
    SwapDevices,
    /// The client lists its devices in the reverse order. No program has it.
    ReorderDevices,
    /// Results are reported as ready before they are.
    EarlyEvent,
    /// Results are never reported as ready.
    LostEvent,
    /// The process ends.
    Abort,
    /// There is no memory for the results.
    OutOfMemory,
}

/// The kinds by the names that users write.
const KINDS: [(&str, Kind); 9] = [
    ("flip-bit", Kind::FlipBit),
    ("low-precision", Kind::LowPrecision),
    ("drop-donation", Kind::DropDonation),
    ("swap-devices", Kind::SwapDevices),
    ("reorder-devices", Kind::ReorderDevices),
    ("early-event", Kind::EarlyEvent),
    ("lost-event", Kind::LostEvent),
    ("abort", Kind::Abort),
    ("out-of-memory", Kind::OutOfMemory),
];

/// A fault of some programs: `KIND:PROGRAM`, or `KIND` for all programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    kind: Kind,
    /// The name of the programs; `None` for all.
    program: Option<String>,
}

impl FromStr for Fault {
    /// What is expected.
    type Err = String;

    fn from_str(text: &str) -> Result<Fault, String> {
        let (name, program) = match text.split_once(':') {
            Some((name, program)) => (name, Some(program.to_owned())),
            None => (text, None),
        };
        let kind = KINDS.iter().find(|kind| kind.0 == name);
        let kind = kind.filter(|_| program.as_deref() != Some("")).ok_or_else(|| {
            let names: Vec<&str> = KINDS.iter().map(|kind| kind.0).collect();
            format!(
                "expected one of {}, alone or with the name of a program, such as `flip-bit:exp`",
                names.join(", ")
            )
        })?;
        Ok(Fault { kind: kind.1, program })
    }
}

impl Fault {
    /// Whether a program of this name has the fault.
    pub(crate) fn is_of(&self, program: &str) -> bool {
        self.program.as_ref().is_none_or(|name| name == program)
    }

    /// What happens before the program runs.
    pub(crate) fn before(&self) -> Result<(), PodError> {
        match self.kind {
            Kind::Abort => std::process::abort(),
            Kind::OutOfMemory => {
                let message = "out of memory, as FULMEN_VIRTUAL_POD_FAULT says";
                Err(PodError::new(PJRT_Error_Code::RESOURCE_EXHAUSTED, message))
            }
            _ => Ok(()),
        }
    }

    /// Whether the program must not use the memory of donated arguments.
    pub(crate) fn drops_donations(&self) -> bool {
        self.kind == Kind::DropDonation
    }

    /// Whether the first two devices have each other's results.
    pub(crate) fn swaps_devices(&self) -> bool {
        self.kind == Kind::SwapDevices
    }

    /// Whether the client lists its devices in the reverse order.
    pub(crate) fn reorders_devices(&self) -> bool {
        self.kind == Kind::ReorderDevices
    }

    /// How long results are zeros after they were reported as ready.
    pub(crate) fn early(&self) -> Option<Duration> {
        (self.kind == Kind::EarlyEvent).then_some(Duration::from_millis(500))
    }

    /// Whether results are never reported as ready.
    pub(crate) fn loses_events(&self) -> bool {
        self.kind == Kind::LostEvent
    }

    /// What happens to the elements of this output; `is_f32` is whether they are in f32.
    pub(crate) fn change(&self, output: usize, is_f32: bool) -> Option<fn(&mut [u8])> {
        match self.kind {
            Kind::FlipBit if output == 0 => Some(flip_bit),
            Kind::LowPrecision if is_f32 => Some(round_to_bf16),
            _ => None,
        }
    }
}

/// Flips a bit of the first number: the first of the fraction, if it is an f32.
fn flip_bit(bytes: &mut [u8]) {
    let place = if bytes.len() >= 4 { 2 } else { 0 };
    if let Some(byte) = bytes.get_mut(place) {
        *byte ^= 0x40;
    }
}

/// Clears the bits of the fraction that bf16 does not have.
fn round_to_bf16(bytes: &mut [u8]) {
    for number in bytes.chunks_exact_mut(4) {
        number[..2].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_of_one_program_or_of_all() {
        let one: Fault = "low-precision:exp".parse().unwrap();
        assert!(one.is_of("exp") && !one.is_of("log"));
        let all: Fault = "drop-donation".parse().unwrap();
        assert!(all.is_of("exp") && all.drops_donations() && !one.drops_donations());
        for text in ["", "rust", "flip-bit:", ":exp"] {
            let expected = text.parse::<Fault>().unwrap_err();
            assert!(expected.contains("flip-bit, low-precision"), "{text}: {expected}");
        }
    }

    #[test]
    fn numbers_are_changed_where_it_shows() {
        let mut bytes = 1.5_f32.to_le_bytes();
        flip_bit(&mut bytes);
        assert_eq!(f32::from_le_bytes(bytes), 1.0);
        let mut bytes = 1.234_567_9_f32.to_le_bytes();
        round_to_bf16(&mut bytes);
        assert_eq!(f32::from_le_bytes(bytes), 1.234_375);
        let mut small = [0];
        flip_bit(&mut small);
        flip_bit(&mut []);
        assert_eq!(small, [0x40]);
    }
}
