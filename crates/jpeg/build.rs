//! Compiles the C half of the decoder against the headers of the libjpeg-turbo that `turbojpeg-sys`
//! built.

#[cfg(not(feature = "libjpeg-turbo"))]
fn main() {}

#[cfg(feature = "libjpeg-turbo")]
fn main() {
    println!("cargo:rerun-if-changed=src/shim.c");
    let mut build = cc::Build::new();
    // Several folders are separated by commas.
    let include = std::env::var("DEP_TURBOJPEG_INCLUDE").unwrap_or_default();
    include.split(',').filter(|folder| !folder.is_empty()).for_each(|folder| {
        build.include(folder);
    });
    build.file("src/shim.c").compile("fulmen_jpeg_shim");
}
