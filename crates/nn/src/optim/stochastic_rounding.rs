//! Stochastic rounding to bf16, of parameters by the Trainer and of the state of optimizers.

use fulmen_tensor::{DType, Tensor, random};

/// The bits of an f32 that bf16 does not have.
const LOST: f64 = 65535.0;

/// Rounds f32 values to bf16, up or down at random. The probability of a neighbor is proportional
/// to its proximity, so the expected result is the value itself. Rounding to nearest would lose
/// each update that is smaller than half of the distance between two numbers.
///
/// The numbers depend only on the key and the shape, not on devices. Infinities and NaN stay.
#[doc(hidden)] // for the Trainer
pub fn round_to_bf16(key: &Tensor, values: &Tensor) -> Tensor {
    let lost = random::bits(key, values.shape()).and(LOST);
    let bits = (values.bitcast(DType::U32) + lost).and(f64::from(u32::MAX) - LOST);
    values.is_finite().select(&bits.bitcast(DType::F32), values).to_dtype(DType::Bf16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of many roundings of one number.
    fn roundings(value: f32) -> Vec<f64> {
        let values = Tensor::full(DType::F32, [20_000], value.into());
        round_to_bf16(&random::key(7), &values).to_dtype(DType::F32).eval().unwrap().to_f64()
    }

    #[test]
    fn the_mean_of_many_roundings_is_the_number() {
        // The neighbors of numbers from 1 to 2 are 2⁻⁷ away.
        for fraction in [0.01f32, 0.25, 0.5, 0.9] {
            for number in
                [1.0 + fraction / 128.0, -1.0 - fraction / 128.0, fraction / 128.0 * 1e-30]
            {
                let all = roundings(number);
                let mut distinct = all.clone();
                distinct.sort_by(f64::total_cmp);
                distinct.dedup();
                let [low, high] = distinct[..] else { panic!("{number}: {distinct:?}") };
                assert!(low < number.into() && f64::from(number) < high, "{number}: {distinct:?}");
                let mean = all.iter().sum::<f64>() / all.len() as f64;
                // Four standard deviations of the mean are at most 4·½/√20000 of the distance.
                let off = (mean - f64::from(number)).abs() / (high - low);
                assert!(off < 0.0142, "{number}: the mean is {off} of the distance away");
            }
        }
    }

    #[test]
    fn numbers_of_bf16_infinities_and_nan_stay() {
        for number in [0.0f32, 1.0, -3.5, 2f32.powi(-130), f32::INFINITY, f32::NEG_INFINITY] {
            assert!(roundings(number).iter().all(|v| *v == f64::from(number)), "{number}");
        }
        // A NaN whose bits would become those of infinity, and one whose sum would overflow.
        for bits in [0x7F80_0001, u32::MAX] {
            assert!(roundings(f32::from_bits(bits)).iter().all(|v| v.is_nan()), "{bits:x}");
        }
    }
}
