// Checkpoints of other programs are recognized by their file names, not reported as damaged.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/load.h"
#include "support/error_of.h"
#include "support/folder.h"

namespace metroplex::checkpoint::foreign_test {
namespace {

struct Case {
  std::vector<std::string> files;  // a name that ends with / is a folder
  std::string format;              // "": not recognized
};

void write(const test::Folder& folder, const Case& item) {
  for (const std::string& name : item.files) {
    const std::filesystem::path path = folder.at("d/" + name);
    std::filesystem::create_directories(path.parent_path());
    if (!name.ends_with("/")) std::ofstream(path) << "global_step100";
  }
}

TEST(ForeignCheckpoints, AreNamedWithAFix) {
  files::PosixFileSystem disk;
  const std::string megatron = "Megatron-LM's torch format", deepspeed = "DeepSpeed's format",
                    dcp = "torch.distributed.checkpoint's format", hugging_face = "Hugging Face transformers";
  for (const Case& item :
       {Case{{"iter_0000010/mp_rank_00/model_optim_rng.pt", "latest_checkpointed_iteration.txt"}, megatron},
        Case{{"mp_rank_00/model_optim_rng.pt"}, megatron},
        Case{{"model_optim_rng.pt"}, megatron},
        Case{{"release/mp_rank_00_001/model_optim_rng.pt"}, megatron},
        Case{{"iter_0000010/common.pt", "iter_0000010/metadata.json", "iter_0000010/.metadata",
              "iter_0000010/__0_0.distcp", "latest_checkpointed_iteration.txt"},
             "Megatron-LM's torch_dist format"},
        Case{{"iter_0000010/", "latest_checkpointed_iteration.txt"}, "a Megatron-LM format"},
        Case{{"global_step100/", "latest"}, deepspeed},
        Case{{"global_step100/mp_rank_00_model_states.pt", "latest", "zero_to_fp32.py"}, deepspeed},
        Case{{"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", "mp_rank_00_model_states.pt"}, deepspeed},
        Case{{"zero_pp_rank_0_mp_rank_00_model_states.pt"}, deepspeed},
        Case{{"__0_0.distcp", ".metadata"}, dcp},
        Case{{"step-100/__0_0.distcp", "step-100/.metadata"}, dcp},
        Case{{"pytorch_model_fsdp_0/__0_0.distcp"}, dcp},
        Case{{"config.json", "model.safetensors"}, hugging_face},
        Case{{"config.json", "pytorch_model-00001-of-00002.bin"}, hugging_face},
        Case{{"checkpoint-500/config.json", "checkpoint-500/model.safetensors"}, hugging_face},
        Case{{"adapter_config.json", "adapter_model.safetensors"}, "PEFT's adapter format"},
        Case{{"consolidated.00.pth", "params.json", "tokenizer.model"}, "Meta's and Mistral's"},
        Case{{"consolidated.safetensors", "params.json", "tekken.json"}, "Meta's and Mistral's"},
        Case{{"config.json", "consolidated.safetensors", "model.safetensors"}, hugging_face},
        Case{{"model_config.yaml", "model_weights.ckpt"}, "NeMo's format"},
        Case{{"context/model.yaml", "weights/.metadata", "weights/__0_0.distcp"}, dcp},
        Case{{"model.Q4_K_M.gguf"}, "llama.cpp's GGUF format"},
        Case{{"config.json", "flax_model.msgpack"}, "JAX or TensorFlow"},
        Case{{"iter_0000010/manifest.json"}, ""},
        Case{{"iter_0000010/manifest.json", "iter_0000020/mp_rank_00/"}, ""},
        Case{{"iter_0000010/rank_0.safetensors", "latest"}, ""},
        Case{{"notes.txt"}, ""}}) {
    const test::Folder folder;
    write(folder, item);
    const std::string format = foreign_format(disk, folder.at("d"));
    EXPECT_EQ(format.empty(), item.format.empty()) << item.files[0] << ": " << format;
    EXPECT_NE(format.find(item.format), std::string::npos) << item.files[0] << ": " << format;
    if (item.format.empty()) continue;
    Alone alone;
    const std::string error = test::catch_error([&] { open_path(disk, folder.at("d"), 0, alone); });
    EXPECT_NE(error.find(item.format), std::string::npos) << error;
    EXPECT_NE(error.find("--model.from"), std::string::npos) << error;
    EXPECT_EQ(error.find("intact"), std::string::npos) << error;
  }
}

TEST(ForeignCheckpoints, SuggestToConvertTorchDcp) {
  files::PosixFileSystem disk;
  for (const std::string name : {"embedding.word_embeddings.weight", "model.embed_tokens.weight"}) {
    const test::Folder folder;
    write(folder, {{"iter_0000010/__0_0.distcp", "latest_checkpointed_iteration.txt"}, ""});
    std::ofstream(folder.at("d/iter_0000010/.metadata")) << name;
    const bool is_megatron = name.starts_with("embedding.");
    EXPECT_EQ(foreign_format(disk, folder.at("d")) == "Megatron-LM's torch_dcp format", is_megatron) << name;
    Alone alone;
    const std::string error = test::catch_error([&] { open_path(disk, folder.at("d"), 0, alone); });
    EXPECT_EQ(error.find("metroplex convert DIR --to checkpoint") != std::string::npos, is_megatron) << error;
  }
}

}  // namespace
}  // namespace metroplex::checkpoint::foreign_test
