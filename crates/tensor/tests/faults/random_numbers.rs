//! Wrong calls of random draws.

use expect_test::expect;
use fulmen_tensor::{DType, random};

use crate::{check_all, integers, zeros};

#[test]
fn draws() {
    let key = random::key(0);
    check_all(
        [
            random::fold_in(&zeros([2]), 1),
            random::fold_in_tensor(&key, &integers([])),
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
        ],
        expect![[r#"
            fold_in: a random key is u32[2], this is f32[2]; make one with random::key()
            fold_in_tensor: the number must be a u32 scalar, it is i32[]
            uniform: draws floating-point numbers, not i32
            uniform: the lower bound 2 must be below the upper, 1
            uniform: the lower bound NaN must be below the upper, 1
            normal: draws floating-point numbers, not u8
            truncated_normal: the lower bound 1 must be below the upper, -1
            randint: draws integers, not f32
            randint: the lower bound 3 must be below the upper, 3
            randint: the numbers from -1 to 3 are not all of u8, 0 to 255
            categorical: draws floating-point numbers, not i32
            argmax: axis 2 is not one of the 2 axes of [2, 3]
            choice: 4 different ones of 3 cannot be chosen
            choice: the probabilities must be a vector of 3 floats, they are f32[4]
            shuffle: axis 1 is not one of the 1 axes of [2]
            bits: [1152921504606846976] has more elements than one draw gives, 4294967295
        "#]],
    );
}
