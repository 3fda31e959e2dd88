//! A few products of matrices, to see whether the instructions of this build work on this machine.
//!
//! Run in a child process: a virtual machine may announce an instruction set and stop the first program that uses it. The
//! results are compared with plain arithmetic, so that a wrong answer is found too. It must never be part of a server.

use llama_cpp_sys_4 as sys;

const WIDTH: usize = 512;
const ROWS: usize = 16;
const COLUMNS: usize = 4;
/// Formats of weights that people use, each with kernels of its own, and how far a product may be off.
const FORMATS: [(sys::ggml_type, &str, f32); 7] = [
    (sys::GGML_TYPE_F32, "F32", 0.01),
    (sys::GGML_TYPE_F16, "F16", 0.01),
    (sys::GGML_TYPE_Q8_0, "Q8_0", 0.03),
    (sys::GGML_TYPE_Q4_0, "Q4_0", 0.3),
    (sys::GGML_TYPE_Q4_1, "Q4_1", 0.3),
    (sys::GGML_TYPE_Q4_K, "Q4_K", 0.3),
    (sys::GGML_TYPE_Q6_K, "Q6_K", 0.1),
];

/// Computes with each format of weights.
///
/// # Errors
/// Which format gave a wrong result.
pub fn try_cpu() -> Result<(), String> {
    // Values between -1 and 1 without a pattern that cancels out.
    let value = |number: usize| ((number * 7919 + number / 13) % 401) as f32 / 200.0 - 1.0;
    let weights: Vec<f32> = (0..WIDTH * ROWS).map(value).collect();
    let inputs: Vec<f32> = (0..WIDTH * COLUMNS).map(|number| value(number * 3 + 1)).collect();
    for (format, name, allowed) in FORMATS {
        let product = multiply(format, &weights, &inputs).ok_or_else(|| format!("{name} could not be computed"))?;
        for (place, found) in product.iter().enumerate() {
            let (row, column) = (place % ROWS, place / ROWS);
            let of = |values: &[f32], line: usize| -> Vec<f32> {
                values.chunks(WIDTH).nth(line).map_or(Vec::new(), <[f32]>::to_vec)
            };
            let expected: f32 = of(&weights, row).iter().zip(of(&inputs, column)).map(|(one, two)| one * two).sum();
            // Sums of 512 products of this size have a spread of about 8.
            let off = (found - expected).abs() / (expected.abs() + 8.0);
            if !off.is_finite() || off > allowed {
                return Err(format!("{name} gives {found} instead of {expected}"));
            }
        }
    }
    Ok(())
}

/// The products of all rows of `weights`, stored in `format`, with all rows of `inputs`.
fn multiply(format: sys::ggml_type, weights: &[f32], inputs: &[f32]) -> Option<Vec<f32>> {
    let (width, rows, columns) = (WIDTH as i64, ROWS as i64, COLUMNS as i64);
    let params = sys::ggml_init_params { mem_size: 16 << 20, mem_buffer: std::ptr::null_mut(), no_alloc: false };
    // SAFETY: the context owns its memory, which is larger than these small tensors and their graph; all pointers are used
    // before it is freed, and each copy has the number of values that its tensor was made for.
    unsafe {
        sys::ggml_cpu_init();
        let context = sys::ggml_init(params);
        if context.is_null() {
            return None;
        }
        let left = sys::ggml_new_tensor_2d(context, format, width, rows);
        let right = sys::ggml_new_tensor_2d(context, sys::GGML_TYPE_F32, width, columns);
        sys::ggml_quantize_chunk(format, weights.as_ptr(), sys::ggml_get_data(left), 0, rows, width, std::ptr::null());
        std::ptr::copy_nonoverlapping(inputs.as_ptr(), sys::ggml_get_data_f32(right), inputs.len());
        let product = sys::ggml_mul_mat(context, left, right);
        let graph = sys::ggml_new_graph(context);
        sys::ggml_build_forward_expand(graph, product);
        let status = sys::ggml_graph_compute_with_ctx(context, graph, 1);
        let values = (status == sys::GGML_STATUS_SUCCESS)
            .then(|| std::slice::from_raw_parts(sys::ggml_get_data_f32(product), ROWS * COLUMNS).to_vec());
        sys::ggml_free(context);
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_build_computes_right_on_this_machine() {
        assert_eq!(try_cpu(), Ok(()));
    }
}
