//! The Threefry-2×32 block function with 20 rounds (Salmon, Moraes, Dror and Shaw, "Parallel random
//! numbers: as easy as 1, 2, 3", SC 2011): an elementwise keyed hash of two words. Every element of
//! a random tensor is computed from its own index, on any device.

use std::fmt::Write as _;

use crate::lower::Lowering;
use crate::operation::{Operation, Vjp};
use crate::{DType, Tensor, TensorType};

/// The rotations of four rounds, in bits. The two sets alternate.
const ROTATIONS: [[u32; 4]; 2] = [[13, 15, 26, 6], [17, 29, 16, 24]];
/// The constant that the key schedule combines with both key words.
const PARITY: u32 = 0x1BD1_1BDA;

#[derive(Debug, Default)]
pub(crate) struct Threefry2x32 {
    /// Whether the words are not computed again where they are used.
    pub(crate) is_computed_once: bool,
}

impl Operation for Threefry2x32 {
    fn name(&self) -> &'static str {
        "threefry2x32"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let key = inputs[0];
        let words = &inputs[1..];
        if words.iter().any(|w| w.dtype != DType::U32 || w.shape != words[0].shape) {
            return Err(format!("counters must be u32 of one shape, not {words:?}"));
        }
        let one_each = TensorType::new(DType::U32, [&words[0].shape[..], &[2]].concat());
        if *key != TensorType::new(DType::U32, [2]) && *key != one_each {
            return Err(format!(
                "a random key must be u32[2], not {key}; make one with random::key()"
            ));
        }
        Ok(vec![words[0].clone(), words[0].clone()])
    }
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        vec![None; 3]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        // One private function for each shape: the rounds are a hundred statements, and a model
        // draws many times.
        let key = cx.operand_type(0).clone();
        let ty = cx.result().clone();
        let dims: Vec<_> = ty.shape.iter().map(usize::to_string).collect();
        // The dot keeps the name apart from user-defined functions.
        let keys = if key.shape.rank() > 1 { ".keys" } else { "" };
        let name = format!("threefry2x32.{}{keys}", dims.join("x"));
        let name = cx.helper(&name, |name| helper(name, &key, &ty, self.is_computed_once));
        format!("func.call @{name}({}) : {}", cx.operands(), cx.signature())
    }
}

/// The text of the function that hashes words of type `ty` with a key, or with one each. With
/// `barrier`, the results are not computed again where they are used.
fn helper(name: &str, key: &TensorType, ty: &TensorType, barrier: bool) -> String {
    let leading = &key.shape[..key.shape.rank() - 1];
    let t = ty.stablehlo();
    let of_shape = |dims: &[usize]| TensorType::new(DType::U32, dims).stablehlo();
    let halves = of_shape(&[leading, &[1]].concat());
    let word = of_shape(leading);
    let key = key.stablehlo();
    let all: String = leading.iter().map(|n| format!("0:{n}:1, ")).collect();
    let axes: Vec<usize> = (0..leading.len()).collect();
    let mut text =
        format!("func.func private @{name}(%key: {key}, %a: {t}, %b: {t}) -> ({t}, {t}) {{\n");
    let mut line = |statement: String| {
        let _ = writeln!(text, "    {statement}");
    };
    for i in 0..2 {
        line(format!("%s{i} = stablehlo.slice %key [{all}{i}:{}:1] : ({key}) -> {halves}", i + 1));
        line(format!("%k{i} = stablehlo.reshape %s{i} : ({halves}) -> {word}"));
    }
    line(format!("%parity = stablehlo.constant dense<{PARITY}> : {word}"));
    line(format!("%k01 = stablehlo.xor %k0, %k1 : {word}"));
    line(format!("%k2 = stablehlo.xor %k01, %parity : {word}"));
    for i in 0..3 {
        line(format!(
            "%w{i} = stablehlo.broadcast_in_dim %k{i}, dims = {axes:?} : ({word}) -> {t}"
        ));
    }
    line(format!("%x0 = stablehlo.add %a, %w0 : {t}"));
    line(format!("%y0 = stablehlo.add %b, %w1 : {t}"));
    let mut x = "%x0".to_owned();
    let mut y = "%y0".to_owned();
    let mut n = 1;
    for group in 0..5 {
        for bits in ROTATIONS[group % 2] {
            line(format!("%x{n} = stablehlo.add {x}, {y} : {t}"));
            line(format!("%l{n} = stablehlo.constant dense<{bits}> : {t}"));
            line(format!("%r{n} = stablehlo.constant dense<{}> : {t}", 32 - bits));
            line(format!("%u{n} = stablehlo.shift_left {y}, %l{n} : {t}"));
            line(format!("%d{n} = stablehlo.shift_right_logical {y}, %r{n} : {t}"));
            line(format!("%o{n} = stablehlo.or %u{n}, %d{n} : {t}"));
            line(format!("%y{n} = stablehlo.xor %o{n}, %x{n} : {t}"));
            (x, y) = (format!("%x{n}"), format!("%y{n}"));
            n += 1;
        }
        // After every four rounds, the next words of the key and the number of the group are added.
        line(format!("%g{n} = stablehlo.constant dense<{}> : {t}", group + 1));
        line(format!("%x{n} = stablehlo.add {x}, %w{} : {t}", (group + 1) % 3));
        line(format!("%i{n} = stablehlo.add {y}, %w{} : {t}", (group + 2) % 3));
        line(format!("%y{n} = stablehlo.add %i{n}, %g{n} : {t}"));
        (x, y) = (format!("%x{n}"), format!("%y{n}"));
        n += 1;
    }
    if barrier {
        line(format!("%words:2 = stablehlo.optimization_barrier {x}, {y} : {t}, {t}"));
        (x, y) = ("%words#0".to_owned(), "%words#1".to_owned());
    }
    line(format!("return {x}, {y} : {t}, {t}"));
    text.push_str("  }");
    text
}

/// The same hash on the host, for keys that are known while recording.
pub(crate) fn threefry2x32_on_host(key: [u32; 2], words: [u32; 2]) -> [u32; 2] {
    let schedule = [key[0], key[1], key[0] ^ key[1] ^ PARITY];
    let mut x = words[0].wrapping_add(schedule[0]);
    let mut y = words[1].wrapping_add(schedule[1]);
    for group in 0..5 {
        for bits in ROTATIONS[group % 2] {
            x = x.wrapping_add(y);
            y = y.rotate_left(bits) ^ x;
        }
        x = x.wrapping_add(schedule[(group + 1) % 3]);
        y = y.wrapping_add(schedule[(group + 2) % 3]).wrapping_add(group as u32 + 1);
    }
    [x, y]
}

/// Hashes the pairs of words `(a, b)`, u32 tensors of one shape. The key is u32[2], or one for each
/// pair along a further last axis.
pub(crate) fn threefry2x32(key: &Tensor, a: &Tensor, b: &Tensor) -> [Tensor; 2] {
    Tensor::apply_many(Threefry2x32::default(), &[key, a, b])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_known_answer_of_the_paper_comes_out() {
        assert_eq!(threefry2x32_on_host([0, 0], [0, 0]), [0x6b20_0159, 0x99ba_4efe]);
        let ones = [u32::MAX; 2];
        assert_eq!(threefry2x32_on_host(ones, ones), [0x1cb9_96fc, 0xbb00_2be7]);
    }

    #[test]
    fn host_and_device_hash_alike() {
        let key = Tensor::from_slice(&[7u32, 0x8000_0001], [2]);
        let keys = key.broadcast_to([3, 4, 2]);
        let words: Vec<u32> = (0..12).map(|i| i * 0x1234_5679).collect();
        let a = Tensor::from_slice(&words, [3, 4]);
        let b = Tensor::from_slice(&words, [3, 4]).not();
        let [x, y] = threefry2x32(&key, &a, &b).map(|t| t.eval().unwrap().to_vec::<u32>().unwrap());
        for (i, &word) in words.iter().enumerate() {
            assert_eq!([x[i], y[i]], threefry2x32_on_host([7, 0x8000_0001], [word, !word]));
        }
        let each = threefry2x32(&keys, &a, &b).map(|t| t.eval().unwrap().to_vec::<u32>().unwrap());
        assert_eq!(each, [x, y]);
    }
}
