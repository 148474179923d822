// The parts of the page, each printed as finished Markdown.
#pragma once

#include <string>

#include "files/expert_trace.h"
#include "models.h"
#include "systems.h"

namespace metroplex::bench {

struct Options {
  int ranks = 64, slots = 2, steps = 200, warm_up = 100;
  int64_t hidden = 0, ffn = 0;  // of experts that are not DeepSeek-V3's
  bool all = false;             // every trace's table; else of a few
  std::string svg_folder;       // "": no pictures
  std::string svg_name = "echo";
};

void print_assumptions(const Model& model, const Options& options);
// Made-up traces: an overview, then tables.
void print_made_up(const Model& model, const Options& options);
// Recorded counts, layer by layer.
void print_recorded(const files::ExpertTrace& trace, const std::string& path, const Model& model,
                    const Options& options);
void print_ultra_ep(const Options& options);
void print_gain(const Options& options);
void print_clones(const Options& options);

}  // namespace metroplex::bench
