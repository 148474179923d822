#include "config/section_fields.h"

#include "config/optimizers.h"

#include "config/family.h"

#define KEY(type, name, value, limits, help) field(#name, section.name, help, limits);

namespace metroplex::config {

void visit(Model& section, FieldList& field) {
#include "config/model_keys.inc"
#include "config/moe_keys.inc"
}

void visit(Peft& section, FieldList& field) {
#include "config/peft_keys.inc"
}

void visit(Precision& section, FieldList& field) {
#include "config/precision_keys.inc"
}

void visit(Optim& section, FieldList& field) {
#include "config/optim_keys.inc"
}

void visit(Parallel& section, FieldList& field) {
#include "config/parallel_keys.inc"
}

void visit(Memory& section, FieldList& field) {
#include "config/memory_keys.inc"
}

void visit(Run& section, FieldList& field) {
#include "config/run_keys.inc"
}

void visit(Data& section, FieldList& field) {
#include "config/data_keys.inc"
}

void visit(Checkpoint& section, FieldList& field) {
#include "config/checkpoint_keys.inc"
}

void visit(Train& section, FieldList& field) {
#include "config/train_keys.inc"
}

}  // namespace metroplex::config
