// Drives the engine's class as libnixl does, with AddressSanitizer in it: two agents of one process exchange memory, and everything that the
// class hands out is given back. `../shim.rs` compiles and runs it.

#include "nixl_abi.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

extern "C" nixlBackendPlugin *devmem_nixl_plugin_record();

namespace {

void require(bool holds, const char *what) {
    if (!holds) {
        std::fprintf(stderr, "does not hold: %s\n", what);
        std::exit(1);
    }
}

#define REQUIRE(holds) require((holds), #holds)

// A list as libnixl makes it: the class of the interface is only read by plugins, and has no constructor.
struct List {
    nixl_mem_t type = DRAM_SEG;
    std::vector<nixlMetaDesc> descs;

    virtual ~List() = default;
    const nixl_meta_dlist_t &as_list() const { return *reinterpret_cast<const nixl_meta_dlist_t *>(this); }
};

struct Agent {
    const char *name;
    nixl_b_params_t parameters{{"way", "sockets"}, {"address", "127.0.0.1"}};
    nixlBackendEngine *engine;
    std::vector<char> memory;
    nixlBlobDesc range{};
    nixlBackendMD *registered = nullptr;

    Agent(const nixlBackendPlugin &plugin, const char *name, char fill) : name(name), memory(100'000, fill) {
        const nixlBackendInitParams params{name, "DEVMEM", &parameters, true, 0, nixl_thread_sync_t::RW, false};
        engine = plugin.create_engine(&params);
        REQUIRE(engine != nullptr);
        range.addr = reinterpret_cast<uintptr_t>(memory.data());
        range.len = memory.size();
        REQUIRE(engine->registerMem(range, DRAM_SEG, registered) == NIXL_SUCCESS);
    }

    // Takes what another agent says of itself and of its memory.
    nixlBackendMD *meet(Agent &other) {
        std::string info, data;
        REQUIRE(other.engine->getConnInfo(info) == NIXL_SUCCESS);
        REQUIRE(other.engine->getPublicData(other.registered, data) == NIXL_SUCCESS);
        REQUIRE(engine->loadRemoteConnInfo(other.name, info) == NIXL_SUCCESS);
        nixlBlobDesc remote = other.range;
        remote.metaInfo = data;
        nixlBackendMD *loaded = nullptr;
        REQUIRE(engine->loadRemoteMD(remote, DRAM_SEG, other.name, loaded) == NIXL_SUCCESS);
        remote.metaInfo = "no region";
        nixlBackendMD *refused = nullptr;
        REQUIRE(engine->loadRemoteMD(remote, DRAM_SEG, other.name, refused) < 0 && refused == nullptr);
        return loaded;
    }

    // Writes to or reads from a region, in two blocks, and waits.
    void transfer(nixl_xfer_op_t op, const Agent &other, nixlBackendMD *there, const char *message) {
        List here, far;
        for (size_t at : {size_t{0}, size_t{50'000}}) {
            here.descs.push_back({{range.addr + at, 40'000, 0}, registered});
            far.descs.push_back({{other.range.addr + at, 40'000, 0}, there});
        }
        nixlBackendReqH *handle = nullptr;
        const nixl_opt_b_args_t args{message, true, ""};
        REQUIRE(engine->prepXfer(op, here.as_list(), far.as_list(), other.name, handle, &args) == NIXL_SUCCESS);
        for (int round = 0; round < 2; ++round) {
            nixl_status_t state = engine->postXfer(op, here.as_list(), far.as_list(), other.name, handle, &args);
            while (state == NIXL_IN_PROG) {
                state = engine->checkXfer(handle);
            }
            REQUIRE(state == NIXL_SUCCESS);
        }
        REQUIRE(engine->releaseReqH(handle) == NIXL_SUCCESS);
        far.descs.pop_back();
        nixlBackendReqH *refused = nullptr;
        REQUIRE(engine->prepXfer(op, here.as_list(), far.as_list(), other.name, refused, nullptr) < 0 && refused == nullptr);
    }

    void expect(size_t count, const std::string &from, const std::string &message) {
        notif_list_t all;
        while (all.size() < count) {
            REQUIRE(engine->getNotifs(all) == NIXL_SUCCESS);
        }
        for (const auto &[sender, text] : all) {
            REQUIRE(sender == from && text == message);
        }
    }
};

} // namespace

int main() {
    const nixlBackendPlugin &plugin = *devmem_nixl_plugin_record();
    REQUIRE(plugin.api_version == 1);
    REQUIRE(plugin.get_backend_options().count("require") == 1);
    REQUIRE(!plugin.get_backend_mems().empty());
    REQUIRE(std::strcmp(plugin.get_plugin_name(), "DEVMEM") == 0);

    Agent near(plugin, "near", 1), far(plugin, "far", 2);
    REQUIRE(!near.engine->getSupportedMems().empty());
    nixlBackendMD *there = near.meet(far);
    REQUIRE(near.engine->connect("far") == NIXL_SUCCESS);
    near.transfer(NIXL_WRITE, far, there, "written");
    far.expect(2, "near", "written");
    REQUIRE(far.memory[39'999] == 1 && far.memory[40'000] == 2 && far.memory[89'999] == 1);
    std::memset(near.memory.data(), 3, near.memory.size());
    near.transfer(NIXL_READ, far, there, "");
    far.expect(2, "near", "");
    REQUIRE(near.memory[0] == 1 && near.memory[45'000] == 3);
    const std::string long_message(300'000, 'x');
    REQUIRE(near.engine->genNotif("far", long_message) == NIXL_SUCCESS);
    far.expect(1, "near", long_message);

    nixlBackendMD *own = nullptr;
    REQUIRE(near.engine->loadLocalMD(near.registered, own) == NIXL_SUCCESS);
    near.transfer(NIXL_WRITE, near, own, "self");
    near.expect(2, "near", "self");

    nixlBackendMD *no_memory = nullptr;
    REQUIRE(near.engine->registerMem(near.range, FILE_SEG, no_memory) == NIXL_ERR_NOT_SUPPORTED && no_memory == nullptr);
    REQUIRE(near.engine->checkXfer(nullptr) < 0);
    REQUIRE(near.engine->genNotif("a stranger", "") < 0);
    for (nixlBackendMD *loaded : {there, own}) {
        REQUIRE(near.engine->unloadMD(loaded) == NIXL_SUCCESS);
    }
    REQUIRE(near.engine->disconnect("far") == NIXL_SUCCESS);
    for (Agent *agent : {&near, &far}) {
        REQUIRE(agent->engine->deregisterMem(agent->registered) == NIXL_SUCCESS);
        plugin.destroy_engine(agent->engine);
    }
    nixl_b_params_t wrong{{"requires", "device"}};
    const nixlBackendInitParams params{"wrong", "DEVMEM", &wrong, false, 0, nixl_thread_sync_t::NONE, false};
    plugin.destroy_engine(plugin.create_engine(&params));
    std::puts("driven");
    return 0;
}
