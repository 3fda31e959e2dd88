//! Does nothing; it is here so that the build-dependencies in Cargo.toml count. They say why.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
