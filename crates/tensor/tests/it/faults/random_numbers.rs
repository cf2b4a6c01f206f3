//! Invalid calls of random draws.

use expect_test::expect;
use fulmen_tensor::{DType, Tensor, random};

use crate::faults::{check_all, check_starts, integers, zeros};

#[test]
fn draws() {
    let key = random::key(0);
    check_all(
        [
            random::fold_in(&zeros([2]), 1),
            random::fold_in_tensor(&key, &zeros([])),
            random::uniform(&key, DType::I32, [2], 0.0, 1.0),
            random::uniform(&key, DType::F32, [2], 2.0, 1.0),
            random::uniform(&key, DType::F32, [2], f64::NAN, 1.0),
            random::normal(&key, DType::U8, [2]),
            random::truncated_normal(&key, DType::F32, [2], 1.0, -1.0),
            random::randint(&key, DType::F32, [2], 0, 3),
            random::randint(&key, DType::I32, [2], 3, 3),
            random::randint(&key, DType::U8, [2], -1, 3),
            random::categorical(&key, &integers([2]), 0),
            random::categorical(&key, &zeros([2, 3]), 2),
            random::choice(&key, 3, [4], false, None),
            random::choice(&key, 3, [2], true, Some(&zeros([4]))),
            random::shuffle(&key, &zeros([2]), 1),
            random::bits(&key, [1 << 60]),
            random::gamma(&key, DType::I32, [2], 1.0),
            random::gamma(&key, DType::F32, [2], 0.0),
            random::gamma(&key, DType::F32, [2], f64::NAN),
            random::gamma(&key, DType::F32, [2], zeros([3])),
            random::gamma(&key, DType::F32, [2], integers([2])),
            random::gamma(&zeros([2]), DType::F32, [2], 1.0),
            random::beta(&key, DType::F32, [2], -1.0, 1.0),
            random::beta(&key, DType::F32, [2], 1.0, 0.0),
            random::beta(&zeros([2]), DType::F32, [2], 1.0, 1.0),
        ],
        expect![[r#"
            fold_in: a random key must be u32[2], not f32[2]; make one with random::key()
            fold_in_tensor: the number must be an integer scalar of up to 32 bits, not f32[]
            uniform: draws floating-point numbers, not i32
            uniform: the lower bound 2 must be below the upper, 1
            uniform: the lower bound NaN must be below the upper, 1
            normal: draws floating-point numbers, not u8
            truncated_normal: the lower bound 1 must be below the upper, -1
            randint: draws integers, not f32
            randint: the lower bound 3 must be below the upper, 3
            randint: the numbers from -1 to 3 are not all in the range of u8, 0 to 255
            categorical: draws floating-point numbers, not i32
            categorical: axis 2 is not one of the 2 axes of [2, 3]
            choice: cannot choose 4 different numbers out of 3 without replacement
            choice: the probabilities must be a vector of 3 floats, not f32[4]
            shuffle: axis 1 is not one of the 1 axes of [2]
            bits: [1152921504606846976] has more elements than a program can address, 2^45
            gamma: draws floating-point numbers, not i32
            gamma: alpha must be above 0, not 0
            gamma: alpha must be above 0, not NaN
            gamma: alpha, f32[3], does not broadcast to [2]
            gamma: alpha must be floating-point numbers, not i32[2]
            gamma: a random key must be u32[2], not f32[2]; make one with random::key()
            beta: a must be above 0, not -1
            beta: b must be above 0, not 0
            beta: a random key must be u32[2], not f32[2]; make one with random::key()
        "#]],
    );
}

#[test]
fn draws_say_what_they_take() {
    let key = random::key(0);
    let wrong = zeros([2]);
    let no_key = "a random key must be u32[2], not f32[2]";
    let half = Tensor::full(DType::F32, [3], 0.5);
    check_starts(&[
        (random::split(&wrong, 2)[1].clone(), &format!("fold_in: {no_key}")),
        (random::randint(&wrong, DType::I32, [2], 0, 1), &format!("randint: {no_key}")),
        (
            random::truncated_normal(&wrong, DType::F32, [2], 0.0, 1.0),
            &format!("truncated_normal: {no_key}"),
        ),
        (random::gumbel(&wrong, DType::F32, [2]), &format!("gumbel: {no_key}")),
        (random::exponential(&wrong, DType::F32, [2]), &format!("exponential: {no_key}")),
        (random::categorical(&wrong, &half, 0), &format!("categorical: {no_key}")),
        (random::permutation(&wrong, 1), &format!("permutation: {no_key}")),
        (random::shuffle(&wrong, &half, 0), &format!("shuffle: {no_key}")),
        (random::choice(&wrong, 2, [1], true, None), &format!("choice: {no_key}")),
        (random::randint(&key, DType::F32, [2], 0, 1), "randint: draws integers, not f32"),
        (
            random::randint(&key, DType::I32, [2], 1, 1),
            "randint: the lower bound 1 must be below the upper, 1",
        ),
        (
            random::randint(&key, DType::U8, [2], 0, 257),
            "randint: the numbers from 0 to 257 are not all in the range of u8, 0 to 255",
        ),
        (
            random::truncated_normal(&key, DType::F32, [2], 1.0, f64::NAN),
            "truncated_normal: the lower bound 1 must",
        ),
        (random::gumbel(&key, DType::I32, [2]), "gumbel: draws floating-point numbers, not i32"),
        (
            random::bernoulli(&key, &half, [2]),
            "bernoulli: the probabilities, f32[3], do not broadcast to [2]",
        ),
        (
            random::categorical(&key, &zeros([2, 0]), 1),
            "categorical: [2, 0] has no element along axis 1",
        ),
        (
            random::categorical(&key, &Tensor::zeros(DType::I32, [2]), 0),
            "categorical: draws floating-point numbers, not i32",
        ),
        (
            random::permutation(&key, 1 << 40),
            "permutation: 1099511627776 numbers are more than an i32 can count",
        ),
        (random::shuffle(&key, &half, 1), "shuffle: axis 1"),
        (
            random::choice(&key, 0, [1], true, None),
            "choice: there is nothing to choose from: n is 0",
        ),
        (
            random::choice(&key, 2, [3], false, None),
            "choice: cannot choose 3 different numbers out of 2 without \
                                                     replacement",
        ),
        (
            random::choice(&key, 2, [3], true, Some(&half)),
            "choice: the probabilities must be a vector of 2 floats, not",
        ),
    ]);
}
