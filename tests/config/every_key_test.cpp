// Each key of the tables, through YAML and as an option, with a value that is not its default.
#include <gtest/gtest.h>

#include "base/error.h"
#include "config/fields.h"
#include "config/load.h"
#include "config/support.h"

namespace metroplex::config {

TEST(EveryKey, TakesAValueFromYamlAndAnOptionAndIsPrinted) {
  Config plain;
  for (const Field& field : fields(plain)) {
    const std::string key = field.key(), before = to_text(field);
    const size_t dot = key.find('.');
    int taken = 0;
    for (const char* value : {"7",
                              "silu",
                              "spectral",
                              "unit_rms_norm",
                              "[a, b]",
                              "[layernorm]",
                              "[attn]",
                              "[optim.lr]",
                              "['*.bias lr_mult=2']",
                              "true",
                              "false",
                              "3",
                              "0.5",
                              "word",
                              "fp32",
                              "bf16",
                              "8bit",
                              "local",
                              "auto",
                              "gloo",
                              "rope",
                              "linear",
                              "cosine",
                              "balanced",
                              "constant",
                              "gelu",
                              "off",
                              "warn",
                              "full",
                              "block",
                              "cpu",
                              "host",
                              "cyclic",
                              "external",
                              "bytes",
                              "LayerNorm",
                              "RMSNorm",
                              "sigmoid",
                              "softmax",
                              "learnable",
                              "gated_delta_net",
                              "lightning_attention",
                              "never",
                              "sgd",
                              "optim",
                              "gpt",
                              "llama",
                              "allgather",
                              "position",
                              "drop",
                              "exact",
                              "breadth_then_depth",
                              "simple",
                              "probs",
                              "mlp",
                              "1f1b",
                              "e4m3",
                              "e2m1",
                              "library",
                              "fp8",
                              "mxfp8",
                              "max",
                              "fp64"}) {
      const std::string section = key.substr(0, dot), name = key.substr(dot + 1);
      std::string printed;
      try {
        Config from_option = load("", {key + "=" + value});
        for (const Field& other : fields(from_option)) {
          if (other.key() == key) printed = to_text(other);
        }
        if (printed == before) continue;
        EXPECT_EQ(dump(parse(section + ":\n  " + name + ": " + value + "\n", {})), dump(from_option)) << key;
      } catch (const base::Error& error) {
        EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << key << " " << error.what();
        continue;
      }
      ++taken;
    }
    EXPECT_GT(taken, 0) << key;
  }
}

}  // namespace metroplex::config
