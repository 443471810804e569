"""One guarded call on its way: how it is checked, driven, made, and written down."""
