/* Connections that send ApiVersions, as all do, and then stay idle. */
#include "load.h"

static void prepare(struct load *load) {
    load->request_bytes = 128;
    load->answer_bytes = 8192;
}

const struct load_kind idle_kind = {"idle", prepare, NULL, NULL, NULL, NULL};
