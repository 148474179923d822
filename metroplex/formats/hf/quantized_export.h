// Quantized weights of exports: the selected weights, their codes and scales, and quantization_config.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "hf/family.h"
#include "hf/quantization.h"

namespace metroplex::hf {

// Returns quantization_config of an export. `method`: "fp8" (E4M3 with an F32 scale for each block of 128 x 128) or
// "mxfp4" (E2M1 with a power of two for each 32 elements; experts only). fp8 quantizes the linear layers of attention
// and MLPs, and lists the other matrices as excluded.
Json export_quantization(const std::string& method, const std::vector<MappedTensor>& mapped);
// Changes the parts of quantized weights to their codes. Returns the form of each, by the name of the codes. Throws
// base::Error("hf") if transformers cannot read the family in this form.
std::map<std::string, QuantizedForm> quantize_parts(const Json& quantization_config, const Family& family,
                                                    std::vector<MappedTensor>& mapped);

struct QuantizedWeight {
  std::vector<std::byte> codes, scales;  // F32 for E4M3, E8M0 as U8 for E2M1
};
// `values`: matrices of form.rows x form.columns. The scale is the largest magnitude of a block / 448, or the power
// of two of OCP's Microscaling Formats Specification 1.0 (section 6.3). If `values` are those of another E4M3 form
// whose scale is a power of two or next to that quotient, the result is that form. Throws base::Error("hf") with
// `name` if a value is not finite.
QuantizedWeight quantize(const QuantizedForm& form, const std::vector<float>& values, const std::string& name);

}  // namespace metroplex::hf
